"""Which state may follow which. The database holds the same table in a trigger."""

from __future__ import annotations

from billing.errors import InvoiceStateRefused
from billing.invoices.models import Invoice, InvoiceStatus

TRANSITIONS: dict[InvoiceStatus, frozenset[InvoiceStatus]] = {
    InvoiceStatus.DRAFT: frozenset({InvoiceStatus.FINAL}),
    InvoiceStatus.FINAL: frozenset({InvoiceStatus.PAID, InvoiceStatus.VOID}),
    InvoiceStatus.PAID: frozenset(),
    InvoiceStatus.VOID: frozenset(),
}


def check(invoice: Invoice, new: InvoiceStatus) -> None:
    if new not in TRANSITIONS[InvoiceStatus(invoice.status)]:
        raise InvoiceStateRefused(str(invoice), invoice.status, new)

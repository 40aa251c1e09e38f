"""Which state may follow which. The database holds the same table in a trigger."""

from __future__ import annotations

from billing.errors import InvoiceStateRefused
from billing.invoices.models import Invoice, InvoiceStatus

TRANSITIONS: dict[InvoiceStatus, frozenset[InvoiceStatus]] = {
    InvoiceStatus.DRAFT: frozenset({InvoiceStatus.FINAL}),
    # An invoice that the provider never took can still become due, be paid otherwise, or be taken back.
    InvoiceStatus.FINAL: frozenset(
        {InvoiceStatus.SENT, InvoiceStatus.PAST_DUE, InvoiceStatus.PAID, InvoiceStatus.VOID}
    ),
    InvoiceStatus.SENT: frozenset(
        {InvoiceStatus.PAST_DUE, InvoiceStatus.PAID, InvoiceStatus.VOID, InvoiceStatus.UNCOLLECTIBLE}
    ),
    InvoiceStatus.PAST_DUE: frozenset({InvoiceStatus.PAID, InvoiceStatus.VOID, InvoiceStatus.UNCOLLECTIBLE}),
    InvoiceStatus.UNCOLLECTIBLE: frozenset({InvoiceStatus.PAID}),
    InvoiceStatus.PAID: frozenset(),
    InvoiceStatus.VOID: frozenset(),
}


def check(invoice: Invoice, new: InvoiceStatus) -> None:
    if new not in TRANSITIONS[InvoiceStatus(invoice.status)]:
        raise InvoiceStateRefused(str(invoice), invoice.status, new)

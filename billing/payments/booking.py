"""Books what the provider says of an invoice: a payment once, in whatever order its events come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from billing.accounts.services import lock_account
from billing.errors import InvoiceStateRefused, KeyReused
from billing.invoices.models import OPEN_STATUSES, Invoice, InvoiceStatus
from billing.invoices.selectors import due_minor
from billing.invoices.services import mark_paid
from billing.ledger.models import AccountKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.reasons import Reason
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.money import from_minor
from billing.payments.gateway import InvoiceFact
from billing.payments.models import EventOutcome, Payment

# The provider of payments that a person booked.
BY_HAND = "by hand"


@dataclass(frozen=True)
class Booked:
    outcome: EventOutcome
    note: str = ""

    @staticmethod
    def unmatched(note: str) -> Booked:
        return Booked(EventOutcome.UNMATCHED, note)


def book_invoice(provider: str, fact: InvoiceFact, now: datetime) -> Booked:
    """In the caller's transaction. What does not fit is left for a person, by name."""
    invoice = _lock_invoice(fact)
    if invoice is None:
        return Booked.unmatched(f"{fact.external_id} is no invoice of ours")
    if fact.status == "paid":
        return _book_payment(provider, fact, invoice, now)
    if fact.status == "open":
        return Booked(EventOutcome.IGNORED, "nothing is paid yet")
    if invoice.status == fact.status:
        return Booked(EventOutcome.REPEATED)
    return Booked.unmatched(f"invoice {invoice} is {invoice.status} here and {fact.status} at the provider")


def _lock_invoice(fact: InvoiceFact) -> Invoice | None:
    """Account first, then the invoice, like everyone: events about one invoice follow each other."""
    ours = {"id": fact.invoice_id} if fact.invoice_id is not None else {"push__external_id": fact.external_id}
    found = Invoice.objects.filter(**ours).first()
    if found is None:
        return None
    lock_account(found.organization_id)
    return Invoice.objects.select_for_update(of=("self",)).get(id=found.id)


def _book_payment(provider: str, fact: InvoiceFact, invoice: Invoice, now: datetime) -> Booked:
    if Payment.objects.filter(provider=provider, provider_payment_id=fact.payment_id).exists():
        return Booked(EventOutcome.REPEATED)
    if invoice.status == InvoiceStatus.PAID and fact.paid_minor == 0:
        # Settled by credit or a credit note, and nothing was paid there.
        return Booked(EventOutcome.REPEATED)
    if invoice.status not in (*OPEN_STATUSES, InvoiceStatus.UNCOLLECTIBLE):
        return Booked.unmatched(f"invoice {invoice} is {invoice.status}")
    expected_minor = due_minor(invoice)
    if (fact.paid_minor, fact.currency) != (expected_minor, invoice.currency):
        expected = f"{expected_minor} {invoice.currency}"
        return Booked.unmatched(f"paid {fact.paid_minor} {fact.currency}, due on invoice {invoice} is {expected}")
    if fact.paid_minor:
        post_payment(
            invoice, provider=provider, payment_id=fact.payment_id, amount_minor=fact.paid_minor, actor_id=None, now=now
        )
    mark_paid(invoice, now=now)
    return Booked(EventOutcome.APPLIED)


def post_payment(
    invoice: Invoice, *, provider: str, payment_id: str, amount_minor: int, actor_id: int | None, now: datetime
) -> None:
    """Money for a locked invoice; of one that was written off, it takes the loss back."""
    if invoice.status not in (*OPEN_STATUSES, InvoiceStatus.UNCOLLECTIBLE):
        raise InvoiceStateRefused(str(invoice), invoice.status, InvoiceStatus.PAID)
    amount_nano = from_minor(amount_minor, invoice.currency)
    Payment.objects.create(
        provider=provider,
        provider_payment_id=payment_id,
        invoice=invoice,
        amount_minor=amount_minor,
        currency=invoice.currency,
        received_at=now,
    )
    is_written_off = invoice.status == InvoiceStatus.UNCOLLECTIBLE
    wallet = lock_wallet(invoice.organization_id)
    settled = AccountKind.BAD_DEBT if is_written_off else AccountKind.RECEIVABLE
    entries = (
        Entry(wallet.accounts[settled], amount_nano),
        Entry(wallet.accounts[AccountKind.CASH], -amount_nano),
    )
    key = f"payment:{provider}:{payment_id}"
    reason = Reason.INVOICE_PAYMENT.about(invoice.number)
    post([Posting(TransactionKind.PAYMENT, key, entries, reason=reason, actor_id=actor_id)])
    if not is_written_off:
        announce(invoice.organization_id, amount_nano)


@transaction.atomic
def record_payment(invoice: Invoice, *, reference: str, actor_id: int, now: datetime) -> Invoice:
    """Book all that is due as paid outside of the provider, e.g. by bank transfer, under the payer's reference.

    A repeat with the reference on a paid invoice changes nothing. Refused when nothing is due, and when the reference
    paid another invoice.
    """
    lock_account(invoice.organization_id)
    invoice = Invoice.objects.select_for_update(of=("self",)).get(id=invoice.id)
    known = Payment.objects.filter(provider=BY_HAND, provider_payment_id=reference).first()
    if known is not None and known.invoice_id != invoice.id:
        raise KeyReused(reference, "payment")
    if known is not None:
        return invoice
    amount_minor = due_minor(invoice)
    if amount_minor == 0:
        raise InvoiceStateRefused(str(invoice), invoice.status, InvoiceStatus.PAID)
    post_payment(invoice, provider=BY_HAND, payment_id=reference, amount_minor=amount_minor, actor_id=actor_id, now=now)
    mark_paid(invoice, now=now)
    return invoice

"""Pushes final invoices to the payment provider, and books what it says was paid."""

from __future__ import annotations

import logging
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.errors import PaymentProviderError
from billing.invoices.models import Invoice, InvoiceStatus
from billing.invoices.selectors import described_lines
from billing.invoices.services import mark_paid
from billing.ledger.models import AccountKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.money import from_minor
from billing.payments.gateway import (
    BilledInvoice,
    BilledLine,
    FileGateway,
    PaidInvoice,
    PaymentGateway,
    ProviderEvent,
    PushedInvoice,
)
from billing.payments.models import EventOutcome, InvoicePush, Payment, PaymentEvent, PushState

logger = logging.getLogger(__name__)


def configured_gateway() -> PaymentGateway:
    """Stripe when a key is set, else files under VAR_DIR."""
    if not settings.STRIPE_SECRET_KEY:
        return FileGateway(settings.VAR_DIR / "payments")
    from billing.payments.stripe_gateway import StripeGateway

    return StripeGateway(
        secret_key=settings.STRIPE_SECRET_KEY,
        webhook_secrets=settings.STRIPE_WEBHOOK_SECRETS,
        api_base=settings.STRIPE_API_BASE,
    )


def push_invoice(invoice_id: int, *, gateway: PaymentGateway | None = None) -> InvoicePush | None:
    """Bring a final invoice to the provider, outside of any transaction. None when there is nothing to push.

    A repeat of a pushed one changes nothing. A failure is kept on the push, to be retried alone, and raised.
    """
    gateway = gateway or configured_gateway()
    invoice = Invoice.objects.select_related("organization").get(id=invoice_id)
    done = InvoicePush.objects.filter(invoice=invoice).first()
    if done is not None and done.state == PushState.PUSHED and done.provider == gateway.name:
        return done
    if invoice.status in (InvoiceStatus.DRAFT, InvoiceStatus.VOID):
        return None
    account = BillingAccount.objects.get(organization_id=invoice.organization_id)
    try:
        pushed = gateway.push_invoice(_billed(invoice, account))
    except PaymentProviderError as error:
        _record_push(invoice, gateway.name, state=PushState.FAILED, error=str(error))
        logger.warning("invoice_push_failed number=%s retryable=%s", invoice.number, error.is_retryable)
        raise
    if pushed.customer_id:
        BillingAccount.objects.filter(id=account.id).update(stripe_customer_id=pushed.customer_id)
    return _record_push(invoice, gateway.name, state=PushState.PUSHED, pushed=pushed)


def _record_push(
    invoice: Invoice, provider: str, *, state: PushState, pushed: PushedInvoice | None = None, error: str = ""
) -> InvoicePush:
    values = {
        "provider": provider,
        "state": state,
        "external_id": pushed.external_id if pushed else "",
        "hosted_url": pushed.hosted_url if pushed else "",
        "last_error": error,
        "updated_at": timezone.now(),
    }
    InvoicePush.objects.update_or_create(invoice=invoice, defaults=values)
    InvoicePush.objects.filter(invoice=invoice).update(attempts=F("attempts") + 1)
    return InvoicePush.objects.get(invoice=invoice)


def _billed(invoice: Invoice, account: BillingAccount) -> BilledInvoice:
    if invoice.number is None or invoice.finalized_at is None or invoice.due_at is None:
        raise ValueError(f"Invoice {invoice.id} is {invoice.status}; only a final one has a number to push.")
    address = {
        "line1": account.address_line1,
        "line2": account.address_line2,
        "postal_code": account.postal_code,
        "city": account.city,
        "state": account.region,
        "country": account.country,
    }
    return BilledInvoice(
        invoice_id=invoice.id,
        organization_id=invoice.organization_id,
        number=invoice.number,
        currency=invoice.currency,
        email=invoice.email,
        name=account.legal_name or invoice.organization.name,
        address={name: value for name, value in address.items() if value},
        customer_id=account.stripe_customer_id,
        finalized_at=invoice.finalized_at,
        due_at=invoice.due_at,
        period_start=invoice.period_start,
        period_end=invoice.period_end,
        lines=tuple(
            BilledLine(line.position, text, line.tokens, line.unit_price_nano, line.amount_minor)
            for line, text in described_lines(invoice)
        ),
        credit_minor=invoice.credit_minor,
        total_minor=invoice.total_minor,
    )


def invoices_to_push() -> list[int]:
    """Final invoices that the provider does not have: never tried, or failed."""
    final = Invoice.objects.filter(status=InvoiceStatus.FINAL).exclude(push__state=PushState.PUSHED)
    return list(final.order_by("id").values_list("id", flat=True))


def receive_event(body: bytes, signature: str, *, gateway: PaymentGateway | None = None) -> EventOutcome:
    """A webhook's raw body and signature to its effect. Raises EventRefused when it is not the provider's."""
    event = (gateway or configured_gateway()).read_event(body, signature)
    return apply_payment_event(event)


@transaction.atomic
def apply_payment_event(event: ProviderEvent, *, now: datetime | None = None) -> EventOutcome:
    """Keep the event and do what it says, in one transaction: a failure leaves no mark, and a redelivery does it.

    Once per event id and once per payment, in whatever order and however many at a time they come.
    """
    now = now or timezone.now()
    invoice = _lock_invoice(event.paid) if event.paid else None
    kept = PaymentEvent.objects.filter(provider=event.provider, event_id=event.event_id).first()
    if kept is not None:
        return EventOutcome.REPEATED
    outcome, note = EventOutcome.IGNORED, ""
    if event.paid is not None:
        outcome, note = _book(event.provider, event.paid, invoice, now)
    if outcome == EventOutcome.UNMATCHED:
        logger.error("payment_unmatched event_id=%s note=%s", event.event_id, note)
    PaymentEvent.objects.bulk_create(
        [
            PaymentEvent(
                provider=event.provider,
                event_id=event.event_id,
                type=event.type,
                payload=event.payload,
                outcome=outcome,
                note=note,
            )
        ],
        ignore_conflicts=event.paid is None,
    )
    return outcome


def _lock_invoice(paid: PaidInvoice) -> Invoice | None:
    """The lock makes events about one invoice follow each other."""
    invoices = Invoice.objects.select_for_update(of=("self",))
    if paid.invoice_id is not None:
        return invoices.filter(id=paid.invoice_id).first()
    return invoices.filter(push__external_id=paid.external_id).first()


def _book(provider: str, paid: PaidInvoice, invoice: Invoice | None, now: datetime) -> tuple[EventOutcome, str]:
    if invoice is None:
        return EventOutcome.UNMATCHED, f"{paid.external_id} is no invoice of ours"
    if Payment.objects.filter(provider=provider, provider_payment_id=paid.payment_id).exists():
        return EventOutcome.REPEATED, ""
    if invoice.status == InvoiceStatus.PAID and paid.amount_minor == 0:
        return EventOutcome.REPEATED, ""
    if invoice.status != InvoiceStatus.FINAL:
        return EventOutcome.UNMATCHED, f"invoice {invoice} is {invoice.status}"
    if (paid.amount_minor, paid.currency) != (invoice.total_minor, invoice.currency):
        expected = f"{invoice.total_minor} {invoice.currency}"
        return EventOutcome.UNMATCHED, f"paid {paid.amount_minor} {paid.currency}, invoice {invoice} is {expected}"
    if paid.amount_minor:
        _post_payment(provider, paid, invoice, now)
    mark_paid(invoice, now=now)
    return EventOutcome.APPLIED, ""


def _post_payment(provider: str, paid: PaidInvoice, invoice: Invoice, now: datetime) -> None:
    amount_nano = from_minor(paid.amount_minor, paid.currency)
    Payment.objects.create(
        provider=provider,
        provider_payment_id=paid.payment_id,
        invoice=invoice,
        amount_minor=paid.amount_minor,
        currency=paid.currency,
        received_at=now,
    )
    wallet = lock_wallet(invoice.organization_id)
    post(
        [
            Posting(
                TransactionKind.PAYMENT,
                f"payment:{provider}:{paid.payment_id}",
                (
                    Entry(wallet.accounts[AccountKind.RECEIVABLE], amount_nano),
                    Entry(wallet.accounts[AccountKind.CASH], -amount_nano),
                ),
                reason=f"payment of invoice {invoice.number}",
            )
        ]
    )
    announce(invoice.organization_id, amount_nano)

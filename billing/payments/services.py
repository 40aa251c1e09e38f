"""Brings issued invoices and credit notes to the payment provider. All calls are outside of any transaction."""

from __future__ import annotations

import logging
from typing import Any

from django.db.models import F
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.accounts.selectors import account_of
from billing.errors import InvalidAccount, PaymentProviderError
from billing.invoices import mail
from billing.invoices.models import CreditNote, CreditNoteEffect, Invoice, InvoiceStatus
from billing.invoices.selectors import described_lines, document
from billing.invoices.services import mark_sent
from billing.payments import payloads
from billing.payments.configuration import configured_gateway
from billing.payments.file_gateway import FileGateway
from billing.payments.gateway import (
    BilledCreditNote,
    BilledInvoice,
    BilledLine,
    Payer,
    PaymentGateway,
    PushedInvoice,
)
from billing.payments.models import InvoicePush, PushState
from billing.tax import ids

logger = logging.getLogger(__name__)


def payer_of(account: BillingAccount) -> Payer:
    """The account as the provider needs it."""
    address = {
        "line1": account.address_line1,
        "line2": account.address_line2,
        "postal_code": account.postal_code,
        "city": account.city,
        "state": account.region,
        "country": account.country,
    }
    try:
        tax_id = ids.parse(account.country, account.tax_id)
    except InvalidAccount:
        # From before numbers were checked: Stripe would refuse it.
        tax_id = None
    return Payer(
        organization_id=account.organization_id,
        name=account.legal_name or account.organization.name,
        email=account.email,
        address={name: value for name, value in address.items() if value},
        customer_id=account.stripe_customer_id,
        tax_id=tax_id.value if tax_id else "",
        tax_id_type=tax_id.stripe_type if tax_id else "",
        language=account.language,
    )


def keep_customer(organization_id: int, customer_id: str) -> None:
    """Remember under which id the provider knows the payer."""
    if customer_id:
        BillingAccount.objects.filter(organization_id=organization_id).update(stripe_customer_id=customer_id)


def push_invoice(invoice_id: int, *, gateway: PaymentGateway | None = None) -> InvoicePush | None:
    """Bring an issued invoice to the provider, which sends it; files send nothing, so then it is mailed from here.

    None when there is nothing to push. A repeat of a pushed one changes nothing. A failure is kept on the push, to be
    retried alone, and raised.
    """
    gateway = gateway or configured_gateway()
    invoice = Invoice.objects.select_related("organization").get(id=invoice_id)
    done = InvoicePush.objects.filter(invoice=invoice).first()
    if done is not None and done.state == PushState.PUSHED and done.provider == gateway.name:
        return done
    if invoice.status in (InvoiceStatus.DRAFT, InvoiceStatus.VOID):
        return None
    account = account_of(invoice.organization_id)
    try:
        pushed = gateway.push_invoice(_billed(invoice, account))
    except PaymentProviderError as error:
        _record_push(invoice, gateway.name, state=PushState.FAILED, error=str(error))
        logger.warning("invoice_push_failed number=%s retryable=%s", invoice.number, error.is_retryable)
        raise
    if gateway.name == FileGateway.name:
        # Nobody else sends it.
        mail.send_invoice(invoice)
    keep_customer(invoice.organization_id, pushed.customer_id)
    push = _record_push(invoice, gateway.name, state=PushState.PUSHED, pushed=pushed)
    mark_sent(invoice.id, now=timezone.now())
    return push


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
        raise ValueError(f"Invoice {invoice.id} is {invoice.status}; only an issued one has a number to push.")
    printed = document(invoice)
    return BilledInvoice(
        invoice_id=invoice.id,
        payer=payer_of(account),
        number=invoice.number,
        currency=invoice.currency,
        finalized_at=invoice.finalized_at,
        due_at=invoice.due_at,
        period_start=invoice.period_start,
        period_end=invoice.period_end,
        lines=tuple(
            BilledLine(line.position, text, line.tokens, line.unit_price_nano, line.amount_minor)
            for line, text in described_lines(invoice)
        ),
        credit_minor=invoice.credit_minor,
        tax_label=printed.tax_label,
        tax_minor=invoice.tax_minor,
        tax_note=printed.tax_note,
        total_minor=invoice.total_minor,
    )


def payload_of(number: str) -> list[dict[str, Any]] | None:
    """The requests that bill the invoice at Stripe, as they would be sent now; None when there is no such invoice."""
    invoice = Invoice.objects.select_related("organization").filter(number=number).first()
    if invoice is None:
        return None
    return [
        request.as_json() for request in payloads.requests_of(_billed(invoice, account_of(invoice.organization_id)))
    ]


def invoices_to_push() -> list[int]:
    """Issued invoices that the provider does not have: never tried, or failed."""
    waiting = Invoice.objects.filter(status__in=[InvoiceStatus.FINAL, InvoiceStatus.PAST_DUE])
    return list(waiting.exclude(push__state=PushState.PUSHED).order_by("id").values_list("id", flat=True))


def _external_id(invoice: Invoice, gateway: PaymentGateway) -> str:
    """Under which id this gateway has the invoice; empty when it never got it."""
    push = InvoicePush.objects.filter(invoice=invoice, provider=gateway.name, state=PushState.PUSHED).first()
    return push.external_id if push else ""


def void_at_provider(invoice_id: int, *, gateway: PaymentGateway | None = None) -> None:
    """A void invoice cannot be paid there either. A repeat changes nothing."""
    gateway = gateway or configured_gateway()
    if external_id := _external_id(Invoice.objects.get(id=invoice_id), gateway):
        gateway.void_invoice(external_id)


def give_up_at_provider(invoice_id: int, *, gateway: PaymentGateway | None = None) -> None:
    """The provider stops asking for an invoice that was written off. A repeat changes nothing."""
    gateway = gateway or configured_gateway()
    if external_id := _external_id(Invoice.objects.get(id=invoice_id), gateway):
        gateway.give_up_invoice(external_id)


# What came of trying a kept card; the provider's reason follows a refusal.
CARD_CHARGED = "The card was charged."
CARD_REFUSED = "The card was refused: "


def try_kept_card(invoice_id: int, *, key: str, gateway: PaymentGateway | None = None) -> str:
    """Charge the kept card for an open invoice; returns what came of it, empty when there is no card to try.

    Success arrives as an event, like any payment. A repeat under the key does not charge twice.
    """
    gateway = gateway or configured_gateway()
    invoice = Invoice.objects.get(id=invoice_id)
    account = account_of(invoice.organization_id)
    external_id = _external_id(invoice, gateway)
    if not (account.stripe_payment_method_id and external_id and gateway.name != FileGateway.name):
        return ""
    try:
        gateway.pay_invoice(external_id, account.stripe_payment_method_id, key)
    except PaymentProviderError as error:
        if error.is_retryable:
            raise
        return f"{CARD_REFUSED}{error}"[:300]
    return CARD_CHARGED


def push_credit_note(credit_note_id: int, *, gateway: PaymentGateway | None = None) -> CreditNote:
    """Bring a credit note to the provider, after its invoice. A repeat of a pushed one changes nothing."""
    gateway = gateway or configured_gateway()
    note = CreditNote.objects.select_related("invoice").get(id=credit_note_id)
    if note.pushed_at is not None:
        return note
    try:
        external_id = _external_id(note.invoice, gateway)
        if not external_id:
            raise PaymentProviderError(f"Invoice {note.invoice} is not at the provider yet.", is_retryable=True)
        note.external_id = gateway.push_credit_note(
            BilledCreditNote(
                credit_note_id=note.id,
                number=note.number,
                invoice_external_id=external_id,
                total_minor=note.total_minor,
                reason=note.reason,
                is_refund=note.effect == CreditNoteEffect.REFUNDS,
            )
        )
    except PaymentProviderError as error:
        CreditNote.objects.filter(id=note.id).update(provider=gateway.name, push_error=str(error))
        logger.warning("credit_note_push_failed number=%s retryable=%s", note.number, error.is_retryable)
        raise
    note.provider, note.push_error, note.pushed_at = gateway.name, "", timezone.now()
    note.save(update_fields=["provider", "external_id", "push_error", "pushed_at"])
    return note


def credit_notes_to_push() -> list[int]:
    return list(CreditNote.objects.filter(pushed_at__isnull=True).order_by("id").values_list("id", flat=True))

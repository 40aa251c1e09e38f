"""What is done to one invoice, under its account's lock: drafted, issued, sent, paid, taken back, given up."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.accounts.models import BillingAccount
from billing.accounts.services import lock_account
from billing.errors import CreditNoteRefused, PeriodNotClosed, PeriodOpen
from billing.invoices import lifecycle
from billing.invoices.annex import require_records
from billing.invoices.composition import Composition, compose_bound, compose_unbound, fee_lines
from billing.invoices.models import Invoice, InvoiceLine, InvoiceSeries, InvoiceStatus
from billing.invoices.periods import Period, month
from billing.invoices.selectors import due_minor
from billing.invoices.signals import invoice_settled
from billing.ledger.models import AccountKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.reasons import Reason
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.money import from_minor
from billing.reconciliation.periods import is_closed
from billing.tax.selectors import tax_of
from billing.usage.models import UsageAdjustment, UsageRecord

logger = logging.getLogger(__name__)

_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


@transaction.atomic
def draft_invoice(*, organization_id: int, period: str, now: datetime | None = None) -> Invoice:
    """The organization's invoice of the month, made or made anew from the usage known now.

    A month that is not over gives a preview of itself. After its end the draft also takes usage of earlier months that
    no invoice has. An invoice that is no draft any more is returned as it is.
    """
    now = now or timezone.now()
    account = lock_account(organization_id)
    bounds = month(period, account.time_zone)
    invoice = _current(organization_id, period)
    if invoice is not None and invoice.status != InvoiceStatus.DRAFT:
        return invoice
    composition = compose_unbound(
        organization_id=organization_id,
        start=bounds.start,
        end=bounds.end,
        since=_BEGINNING if bounds.is_over(now) else bounds.start,
        currency=account.currency,
    )
    invoice = invoice or Invoice(organization_id=organization_id, period=period)
    _fill(invoice, account, bounds, composition, now)
    return invoice


@transaction.atomic
def finalize_invoice(invoice: Invoice, *, now: datetime | None = None) -> Invoice:
    """Bind the usage, compute the lines from what was bound, number the invoice and freeze it.

    A repeat returns the final invoice; of two at a time one waits. Refused while the month is not over in the billing
    zone, for a void invoice, and where invoices wait for the close of the month (of UTC, by the same name). After the
    commit the invoice is pushed to the payment provider.
    """
    now = now or timezone.now()
    account = lock_account(invoice.organization_id)
    invoice = Invoice.objects.select_for_update().get(id=invoice.id)
    if invoice.status not in (InvoiceStatus.DRAFT, InvoiceStatus.VOID):
        return invoice
    lifecycle.check(invoice, InvoiceStatus.FINAL)
    bounds = month(invoice.period, account.time_zone)
    if not bounds.is_over(now):
        raise PeriodOpen(invoice.period, account.time_zone)
    if settings.INVOICE_REQUIRE_CLOSED_PERIOD and not is_closed(invoice.period):
        raise PeriodNotClosed(invoice.period)
    _bind(invoice, bounds)
    composition = compose_bound(
        organization_id=invoice.organization_id,
        invoice_id=invoice.id,
        start=bounds.start,
        currency=account.currency,
    )
    _fill(invoice, account, bounds, composition, now)
    _post_charges(invoice)
    invoice.status = InvoiceStatus.FINAL
    invoice.finalized_at = now
    invoice.due_at = now + timedelta(days=settings.INVOICE_DUE_DAYS)
    # Last, so that the series is locked for the shortest time.
    invoice.number = next_number(settings.INVOICE_NUMBER_PREFIX)
    invoice.save(update_fields=["status", "finalized_at", "due_at", "number"])
    transaction.on_commit(partial(_enqueue, "push_invoice", invoice.id), robust=True)
    logger.info("invoice_finalized number=%s total_minor=%s", invoice.number, invoice.total_minor)
    return invoice


@transaction.atomic
def void_invoice(invoice: Invoice, *, reason: str, now: datetime | None = None) -> Invoice:
    """Take an issued invoice back: it keeps its number, its usage is free for another. Refused when paid or
    credited, and when its records are gone: nothing could bill them again.

    A repeat returns the void invoice. After the commit it is voided at the payment provider too.
    """
    now = now or timezone.now()
    lock_account(invoice.organization_id)
    invoice = Invoice.objects.select_for_update().get(id=invoice.id)
    if invoice.status == InvoiceStatus.VOID:
        return invoice
    lifecycle.check(invoice, InvoiceStatus.VOID)
    if invoice.credit_notes.exists():
        raise CreditNoteRefused(
            _("Invoice %(invoice)s was credited in part; credit the rest instead of voiding it.") % {"invoice": invoice}
        )
    require_records(invoice)
    UsageRecord.objects.filter(invoice=invoice).update(invoice=None)
    UsageAdjustment.objects.filter(invoice=invoice).update(invoice=None)
    _post_charges(invoice, is_void=True)
    invoice.status, invoice.voided_at, invoice.void_reason = InvoiceStatus.VOID, now, reason
    invoice.save(update_fields=["status", "voided_at", "void_reason"])
    transaction.on_commit(partial(_enqueue, "void_at_provider", invoice.id), robust=True)
    logger.info("invoice_voided number=%s", invoice.number)
    return invoice


def mark_sent(invoice_id: int, *, now: datetime) -> None:
    """The payer has it. A repeat, and an invoice that is further already, stay as they are."""
    Invoice.objects.filter(id=invoice_id, status=InvoiceStatus.FINAL).update(status=InvoiceStatus.SENT, sent_at=now)


def mark_past_due(*, now: datetime) -> int:
    """Every open invoice whose due date has gone by; returns how many. A repeat finds none."""
    due = Invoice.objects.filter(
        status__in=[InvoiceStatus.FINAL, InvoiceStatus.SENT], due_at__lte=now, total_minor__gt=0
    )
    return due.update(status=InvoiceStatus.PAST_DUE)


def mark_paid(invoice: Invoice, *, now: datetime) -> None:
    """In the transaction that books the payment, on a locked invoice."""
    lifecycle.check(invoice, InvoiceStatus.PAID)
    invoice.status, invoice.paid_at = InvoiceStatus.PAID, now
    invoice.save(update_fields=["status", "paid_at"])
    invoice_settled.send(sender=None, organization_id=invoice.organization_id, now=now)


@transaction.atomic
def write_off(invoice: Invoice, *, actor_id: int | None, reason: str, now: datetime | None = None) -> Invoice:
    """Give up what is due: the receivable becomes a loss. A repeat returns it. It can still be paid."""
    now = now or timezone.now()
    lock_account(invoice.organization_id)
    invoice = Invoice.objects.select_for_update().get(id=invoice.id)
    if invoice.status == InvoiceStatus.UNCOLLECTIBLE:
        return invoice
    lifecycle.check(invoice, InvoiceStatus.UNCOLLECTIBLE)
    lost_nano = from_minor(due_minor(invoice), invoice.currency)
    if lost_nano:
        wallet = lock_wallet(invoice.organization_id)
        entries = (
            Entry(wallet.accounts[AccountKind.RECEIVABLE], lost_nano),
            Entry(wallet.accounts[AccountKind.BAD_DEBT], -lost_nano),
        )
        key = f"write-off:invoice:{invoice.id}"
        post([Posting(TransactionKind.WRITE_OFF, key, entries, reason=reason, actor_id=actor_id)])
        announce(invoice.organization_id, lost_nano)
    invoice.status, invoice.uncollectible_at = InvoiceStatus.UNCOLLECTIBLE, now
    invoice.save(update_fields=["status", "uncollectible_at"])
    transaction.on_commit(partial(_enqueue, "give_up_at_provider", invoice.id), robust=True)
    logger.info("invoice_written_off number=%s", invoice.number)
    return invoice


def _current(organization_id: int, period: str) -> Invoice | None:
    invoices = Invoice.objects.filter(organization_id=organization_id, period=period)
    return invoices.exclude(status=InvoiceStatus.VOID).first()


def _fill(invoice: Invoice, account: BillingAccount, bounds: Period, usage: Composition, now: datetime) -> None:
    """Write the draft's figures, copies of who bills whom, and its lines."""
    fees = fee_lines(account.organization_id, bounds, account.currency)
    tax = tax_of(account, on=now.astimezone(ZoneInfo(account.time_zone)).date())
    invoice.period_start, invoice.period_end, invoice.time_zone = bounds.start, bounds.end, bounds.time_zone
    invoice.currency, invoice.email, invoice.language = account.currency, account.email, account.language
    invoice.issuer, invoice.bill_to = settings.INVOICE_ISSUER, _bill_to(account)
    invoice.bill_to_tax_id = account.tax_id
    invoice.usage_nano, invoice.fees_nano = usage.usage_nano, sum(line.amount_nano for line in fees)
    invoice.credit_nano, invoice.absorbed_nano = usage.credit_nano, usage.absorbed_nano
    invoice.rounding_nano = usage.rounding_nano
    invoice.subtotal_minor = usage.subtotal_minor + sum(line.amount_minor for line in fees)
    invoice.credit_minor = usage.credit_minor
    net_minor = invoice.subtotal_minor - invoice.credit_minor
    invoice.tax_kind, invoice.tax_name, invoice.tax_percent = tax.kind, tax.name, tax.percent
    invoice.tax_minor = tax.tax_minor(net_minor)
    invoice.total_minor = net_minor + invoice.tax_minor
    invoice.drafted_at = now
    invoice.save()
    invoice.lines.all().delete()
    lines = [*usage.lines, *fees]
    for position, line in enumerate(lines, start=1):
        line.invoice, line.position = invoice, position
    InvoiceLine.objects.bulk_create(lines)


def _bill_to(account: BillingAccount) -> str:
    place = " ".join(part for part in (account.postal_code, account.city) if part)
    parts = (
        account.legal_name or account.organization.name,
        account.address_line1,
        account.address_line2,
        place,
        account.region,
        account.country,
    )
    return "\n".join(part for part in parts if part)


_BIND_RECORDS = """
UPDATE billing_usage_record SET invoice_id = %s
 WHERE organization_id = %s AND invoice_id IS NULL AND status <> 'started' AND started_at < %s
"""
_BIND_ADJUSTMENTS = """
UPDATE billing_usage_adjustment adjustment SET invoice_id = %s FROM billing_usage_record record
 WHERE record.request_id = adjustment.record_id AND adjustment.organization_id = %s AND adjustment.invoice_id IS NULL
   AND record.started_at < %s
"""


def _bind(invoice: Invoice, bounds: Period) -> None:
    with connection.cursor() as cursor:
        for statement in (_BIND_RECORDS, _BIND_ADJUSTMENTS):
            cursor.execute(statement, [invoice.id, invoice.organization_id, bounds.end])


def _post_charges(invoice: Invoice, *, is_void: bool = False) -> None:
    """Make what is owed the invoice's total: with fees and tax, and in whole cents. A void takes that back."""
    charges = (
        (TransactionKind.ROUNDING, AccountKind.ROUNDING, "rounding", Reason.INVOICE_ROUNDING, invoice.rounding_nano),
        (TransactionKind.FEE, AccountKind.REVENUE, "fees", Reason.INVOICE_FEES, invoice.fees_nano),
        (
            TransactionKind.TAX,
            AccountKind.TAX,
            "tax",
            Reason.INVOICE_TAX,
            from_minor(invoice.tax_minor, invoice.currency),
        ),
    )
    sign, suffix = (-1, ":void") if is_void else (1, "")
    wallet = lock_wallet(invoice.organization_id)
    postings = [
        Posting(
            kind,
            f"{name}:invoice:{invoice.id}{suffix}",
            (
                Entry(wallet.accounts[AccountKind.RECEIVABLE], -sign * amount_nano),
                Entry(wallet.accounts[account], sign * amount_nano),
            ),
            reason=reason.about(invoice.id),
        )
        for kind, account, name, reason, amount_nano in charges
        if amount_nano
    ]
    post(postings)
    if postings:
        announce(invoice.organization_id, -sign * sum(amount_nano for *_, amount_nano in charges))


def next_number(prefix: str) -> str:
    """The next number without a gap: a transaction that fails gives its number back with the rest."""
    InvoiceSeries.objects.get_or_create(prefix=prefix)
    series = InvoiceSeries.objects.select_for_update().get(prefix=prefix)
    series.last_number += 1
    series.save(update_fields=["last_number"])
    return f"{prefix}-{series.last_number:06d}"


def _enqueue(task: str, invoice_id: int) -> None:
    from billing import tasks

    getattr(tasks, task).delay(invoice_id)

"""Drafts, finalizes and voids invoices, one at a time, under the account's lock; and the monthly run over all."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.errors import PeriodOpen, UnknownAccount
from billing.invoices import lifecycle
from billing.invoices.composition import Composition, compose_bound, compose_unbound
from billing.invoices.models import Invoice, InvoiceLine, InvoiceSeries, InvoiceStatus
from billing.invoices.periods import Period, month, month_before
from billing.ledger.models import AccountKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.usage.models import UsageAdjustment, UsageRecord

logger = logging.getLogger(__name__)

# How long after the end of the month the automatic run waits for late finishes and receipts.
SETTLING_TIME = timedelta(hours=6)
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


@transaction.atomic
def draft_invoice(*, organization_id: int, period: str, now: datetime | None = None) -> Invoice:
    """The organization's invoice of the month, made or made anew from the usage known now.

    A month that is not over gives a preview of itself. After its end the draft also takes usage of earlier months that
    no invoice has. An invoice that is no draft any more is returned as it is.
    """
    now = now or timezone.now()
    account = _lock_account(organization_id)
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
    zone, and for a void invoice. After the commit the invoice is pushed to the payment provider.
    """
    now = now or timezone.now()
    account = _lock_account(invoice.organization_id)
    invoice = Invoice.objects.select_for_update().get(id=invoice.id)
    if invoice.status in (InvoiceStatus.FINAL, InvoiceStatus.PAID):
        return invoice
    lifecycle.check(invoice, InvoiceStatus.FINAL)
    bounds = month(invoice.period, account.time_zone)
    if not bounds.is_over(now):
        raise PeriodOpen(invoice.period, account.time_zone)
    _bind(invoice, bounds)
    composition = compose_bound(
        organization_id=invoice.organization_id,
        invoice_id=invoice.id,
        start=bounds.start,
        currency=account.currency,
    )
    _fill(invoice, account, bounds, composition, now)
    _post_rounding(invoice, composition.rounding_nano, suffix="")
    invoice.status = InvoiceStatus.FINAL
    invoice.finalized_at = now
    invoice.due_at = now + timedelta(days=settings.INVOICE_DUE_DAYS)
    # Last, so that the series is locked for the shortest time.
    invoice.number = _next_number()
    invoice.save(update_fields=["status", "finalized_at", "due_at", "number"])
    transaction.on_commit(lambda: _enqueue_push(invoice.id), robust=True)
    logger.info("invoice_finalized number=%s total_minor=%s", invoice.number, invoice.total_minor)
    return invoice


@transaction.atomic
def void_invoice(invoice: Invoice, *, reason: str, now: datetime | None = None) -> Invoice:
    """Take a final invoice back: it keeps its number, its usage is free for another invoice. Refused when paid.

    A repeat returns the void invoice.
    """
    now = now or timezone.now()
    _lock_account(invoice.organization_id)
    invoice = Invoice.objects.select_for_update().get(id=invoice.id)
    if invoice.status == InvoiceStatus.VOID:
        return invoice
    lifecycle.check(invoice, InvoiceStatus.VOID)
    UsageRecord.objects.filter(invoice=invoice).update(invoice=None)
    UsageAdjustment.objects.filter(invoice=invoice).update(invoice=None)
    _post_rounding(invoice, -invoice.rounding_nano, suffix=":void")
    invoice.status, invoice.voided_at, invoice.void_reason = InvoiceStatus.VOID, now, reason
    invoice.save(update_fields=["status", "voided_at", "void_reason"])
    return invoice


def mark_paid(invoice: Invoice, *, now: datetime) -> None:
    """Final to paid; in the transaction that books the payment, on a locked invoice."""
    lifecycle.check(invoice, InvoiceStatus.PAID)
    invoice.status, invoice.paid_at = InvoiceStatus.PAID, now
    invoice.save(update_fields=["status", "paid_at"])


@dataclass
class RunSummary:
    """Accounts by what the run did with them; `failed` holds organization and reason."""

    drafted: int = 0
    finalized: int = 0
    # Had an invoice that is no draft any more.
    already_final: int = 0
    # Nothing to bill: no invoice and no number.
    empty: int = 0
    # The month is not over in the account's zone.
    still_open: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)


def run_month(period: str, preview: bool = False, *, now: datetime | None = None) -> RunSummary:
    """Invoice the month `YYYY-MM` of every account; a preview only drafts, also a month that is not over."""
    now = now or timezone.now()
    month(period, "UTC")
    summary = RunSummary()
    for account in BillingAccount.objects.order_by("organization_id").iterator():
        _run_account(account, period, preview, now, summary)
    return summary


def run_due(*, now: datetime | None = None) -> RunSummary:
    """Invoice each account's last month once it has been over for SETTLING_TIME in its own zone.

    Runs as often as you like: one invoice per organization and month is a constraint of the database.
    """
    now = now or timezone.now()
    summary = RunSummary()
    for account in BillingAccount.objects.order_by("organization_id").iterator():
        period = month_before(now, account.time_zone)
        if period.is_over(now - SETTLING_TIME):
            _run_account(account, period.name, False, now, summary)
        else:
            summary.still_open += 1
    return summary


def _run_account(account: BillingAccount, period: str, preview: bool, now: datetime, summary: RunSummary) -> None:
    if not preview and not month(period, account.time_zone).is_over(now):
        summary.still_open += 1
        return
    try:
        invoice = draft_invoice(organization_id=account.organization_id, period=period, now=now)
        if invoice.status != InvoiceStatus.DRAFT:
            summary.already_final += 1
        elif not invoice.lines.exists():
            Invoice.objects.filter(id=invoice.id, status=InvoiceStatus.DRAFT).delete()
            summary.empty += 1
        elif preview:
            summary.drafted += 1
        else:
            finalize_invoice(invoice, now=now)
            summary.finalized += 1
    except Exception as error:
        # The edge of one account: recorded and counted, and the others go on.
        logger.exception("invoice_run_failed organization_id=%s period=%s", account.organization_id, period)
        summary.failed.append((account.organization_id, str(error)))


def _lock_account(organization_id: int) -> BillingAccount:
    account = BillingAccount.objects.select_for_update().filter(organization_id=organization_id).first()
    if account is None:
        raise UnknownAccount(organization_id)
    return account


def _current(organization_id: int, period: str) -> Invoice | None:
    invoices = Invoice.objects.filter(organization_id=organization_id, period=period)
    return invoices.exclude(status=InvoiceStatus.VOID).first()


def _fill(invoice: Invoice, account: BillingAccount, bounds: Period, composition: Composition, now: datetime) -> None:
    """Write the draft's figures, copies of who bills whom, and its lines."""
    invoice.period_start, invoice.period_end, invoice.time_zone = bounds.start, bounds.end, bounds.time_zone
    invoice.currency, invoice.email = account.currency, account.email
    invoice.issuer, invoice.bill_to = settings.INVOICE_ISSUER, _bill_to(account)
    invoice.bill_to_tax_id = account.tax_id
    invoice.usage_nano = composition.usage_nano
    invoice.credit_nano = composition.credit_nano
    invoice.absorbed_nano = composition.absorbed_nano
    invoice.rounding_nano = composition.rounding_nano
    invoice.subtotal_minor = composition.subtotal_minor
    invoice.credit_minor = composition.credit_minor
    invoice.total_minor = composition.total_minor
    invoice.drafted_at = now
    invoice.save()
    invoice.lines.all().delete()
    for line in composition.lines:
        line.invoice = invoice
    InvoiceLine.objects.bulk_create(composition.lines)


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


def _post_rounding(invoice: Invoice, rounding_nano: int, *, suffix: str) -> None:
    """Make what is owed the invoice's whole cents."""
    if rounding_nano == 0:
        return
    wallet = lock_wallet(invoice.organization_id)
    post(
        [
            Posting(
                TransactionKind.ROUNDING,
                f"rounding:invoice:{invoice.id}{suffix}",
                (
                    Entry(wallet.accounts[AccountKind.RECEIVABLE], -rounding_nano),
                    Entry(wallet.accounts[AccountKind.ROUNDING], rounding_nano),
                ),
                reason=f"rounding of invoice {invoice.id} to whole cents",
            )
        ]
    )
    announce(invoice.organization_id, -rounding_nano)


def _next_number() -> str:
    """The next number without a gap: a transaction that fails gives its number back with the rest."""
    prefix = settings.INVOICE_NUMBER_PREFIX
    InvoiceSeries.objects.get_or_create(prefix=prefix)
    series = InvoiceSeries.objects.select_for_update().get(prefix=prefix)
    series.last_number += 1
    series.save(update_fields=["last_number"])
    return f"{prefix}-{series.last_number:06d}"


def _enqueue_push(invoice_id: int) -> None:
    from billing.tasks import push_invoice

    push_invoice.delay(invoice_id)

"""The run over all accounts: a month by hand, in slices that survive a kill, and what is due, every hour.

Each account is a transaction of its own, so what a killed run has done is done; it goes on behind the last account that
it reported, and passing over an account again changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.errors import PeriodNotClosed
from billing.fees.models import RecurringFee
from billing.invoices.models import Invoice, InvoiceStatus
from billing.invoices.periods import Period, month, month_before
from billing.invoices.services import draft_invoice, finalize_invoice
from billing.reconciliation.periods import is_closed
from billing.usage.models import RecordStatus, UsageAdjustment, UsageRecord

logger = logging.getLogger(__name__)

# How many failures are kept with their reasons; the count goes on.
FAILURES_KEPT = 200
_REPORT_EVERY = 25


@dataclass
class RunSummary:
    """Accounts by what the run did with them; `failed` holds organization and reason of the first FAILURES_KEPT."""

    drafted: int = 0
    finalized: int = 0
    # Had an invoice that is no draft any more.
    already_final: int = 0
    # Nothing to bill: no invoice and no number.
    empty: int = 0
    # The month is not over in the account's zone, or its grace is not.
    still_open: int = 0
    # Drafts that wait for the close of their month in reconciliation, where invoices must.
    waiting: int = 0
    # Of the finalized ones: issued before the close of their month.
    unclosed: int = 0
    failed_count: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def done(self) -> int:
        passed = self.drafted + self.finalized + self.already_final + self.empty + self.still_open
        return passed + self.waiting + self.failed_count


def account_count() -> int:
    """How many accounts a run passes over."""
    return BillingAccount.objects.count()


def run_month(
    period: str,
    preview: bool = False,
    *,
    now: datetime | None = None,
    summary: RunSummary | None = None,
    after: int = 0,
    report: Callable[[RunSummary, int], None] | None = None,
    stop_after_s: float | None = None,
) -> RunSummary:
    """Invoice the month `YYYY-MM` of every account; a preview only drafts, also a month that is not over.

    `after` and `summary` go on where an earlier call stopped; `report` hears the summary and the last organization now
    and then, and at the end. With `stop_after_s` it stops then, in the middle: look at `is_complete`.
    """
    now = now or timezone.now()
    month(period, "UTC")
    was_closed = is_closed(period)
    summary = summary or RunSummary()
    started, position = time.monotonic(), after
    accounts = BillingAccount.objects.filter(organization_id__gt=after).order_by("organization_id")
    for number, account in enumerate(accounts.iterator(chunk_size=200), start=1):
        _run_account(account, month(period, account.time_zone), preview, now, summary, was_closed)
        position = account.organization_id
        if report and number % _REPORT_EVERY == 0:
            report(summary, position)
        if stop_after_s is not None and time.monotonic() - started > stop_after_s:
            break
    if report:
        report(summary, position)
    return summary


def retry_account(
    period: str, organization_id: int, preview: bool = False, *, summary: RunSummary, now: datetime | None = None
) -> None:
    """Once more for an account that failed; `summary` says what became of it. An account that did not fail is left."""
    kept = [failure for failure in summary.failed if failure[0] != organization_id]
    if len(kept) == len(summary.failed):
        return
    summary.failed, summary.failed_count = kept, summary.failed_count - 1
    account = BillingAccount.objects.get(organization_id=organization_id)
    zoned = month(period, account.time_zone)
    _run_account(account, zoned, preview, now or timezone.now(), summary, is_closed(period))


def is_complete(after: int) -> bool:
    """Whether no account is left behind the one where a run stopped."""
    return not BillingAccount.objects.filter(organization_id__gt=after).exists()


def grace() -> timedelta:
    """Between the end of a month and its invoice: time for late finishes, receipts and corrections."""
    return timedelta(hours=settings.INVOICE_GRACE_HOURS)


def run_due(*, now: datetime | None = None) -> RunSummary:
    """Bring each account's last month on: a draft once it is over in the account's zone, after the grace the invoice.

    Runs as often as you like: one invoice per organization and month is a constraint of the database. Accounts with
    nothing to bill are not looked at.
    """
    now = now or timezone.now()
    summary = RunSummary()
    for zone in sorted(set(BillingAccount.objects.values_list("time_zone", flat=True))):
        period = month_before(now, zone)
        is_due, was_closed = now >= period.end + grace(), is_closed(period.name)
        for account in _accounts_to_bill(zone, period):
            _run_account(account, period, not is_due, now, summary, was_closed)
    return summary


def _accounts_to_bill(time_zone: str, period: Period) -> Iterator[BillingAccount]:
    """Those of a zone that have something to bill for the month, and no invoice of it that is out."""
    usage = Q(organization_id=OuterRef("organization_id"), invoice__isnull=True)
    records = UsageRecord.objects.filter(usage, started_at__lt=period.end).exclude(status=RecordStatus.STARTED)
    adjustments = UsageAdjustment.objects.filter(usage)
    fees = RecurringFee.objects.filter(organization_id=OuterRef("organization_id"))
    issued = Invoice.objects.filter(organization_id=OuterRef("organization_id"), period=period.name)
    issued = issued.exclude(status__in=[InvoiceStatus.DRAFT, InvoiceStatus.VOID])
    accounts = BillingAccount.objects.filter(
        Exists(records) | Exists(adjustments) | Exists(fees), ~Exists(issued), time_zone=time_zone
    )
    return accounts.order_by("organization_id").iterator(chunk_size=200)


def _run_account(
    account: BillingAccount, period: Period, preview: bool, now: datetime, summary: RunSummary, was_closed: bool
) -> None:
    if not preview and not period.is_over(now):
        summary.still_open += 1
        return
    try:
        invoice = draft_invoice(organization_id=account.organization_id, period=period.name, now=now)
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
            summary.unclosed += not was_closed
    except PeriodNotClosed:
        summary.waiting += 1
    except Exception as error:
        # The edge of one account: recorded and counted, and the others go on.
        logger.exception("invoice_run_failed organization_id=%s period=%s", account.organization_id, period.name)
        summary.failed_count += 1
        if len(summary.failed) < FAILURES_KEPT:
            summary.failed.append((account.organization_id, str(error)))

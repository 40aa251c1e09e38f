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
from enum import StrEnum

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


class Outcome(StrEnum):
    """What a run did with an account."""

    DRAFTED = "drafted"
    FINALIZED = "finalized"
    # Had an invoice that is no draft any more.
    ALREADY_FINAL = "already_final"
    # Nothing to bill: no invoice and no number.
    EMPTY = "empty"
    # The month is not over in the account's zone, or its grace is not.
    STILL_OPEN = "still_open"
    # Drafts that wait for the close of their month in reconciliation, where invoices must.
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AccountOutcome:
    """`reason` says why it failed."""

    organization_id: int
    outcome: Outcome
    invoice_id: int | None = None
    reason: str = ""


@dataclass
class RunSummary:
    """How many accounts had which outcome; `failed` holds organization and reason of the first FAILURES_KEPT."""

    drafted: int = 0
    finalized: int = 0
    already_final: int = 0
    empty: int = 0
    still_open: int = 0
    waiting: int = 0
    # Of the finalized ones: issued before the close of their month.
    unclosed: int = 0
    failed_count: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def done(self) -> int:
        passed = self.drafted + self.finalized + self.already_final + self.empty + self.still_open
        return passed + self.waiting + self.failed_count

    def add(self, found: AccountOutcome, *, was_closed: bool) -> None:
        if found.outcome == Outcome.FAILED:
            self.failed_count += 1
            if len(self.failed) < FAILURES_KEPT:
                self.failed.append((found.organization_id, found.reason))
        else:
            setattr(self, found.outcome, getattr(self, found.outcome) + 1)
            self.unclosed += found.outcome == Outcome.FINALIZED and not was_closed

    def forget_failure(self, organization_id: int) -> None:
        self.failed_count -= 1
        self.failed = [failure for failure in self.failed if failure[0] != organization_id]


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
    report: Callable[[RunSummary, int, list[AccountOutcome]], None] | None = None,
    stop_after_s: float | None = None,
) -> RunSummary:
    """Invoice the month `YYYY-MM` of every account; a preview only drafts, also a month that is not over.

    `after` and `summary` go on where an earlier call stopped; `report` hears the summary, the last organization and the
    outcomes since it last heard, now and then and at the end. With `stop_after_s` it stops then, in the middle: look at
    `is_complete`.
    """
    now = now or timezone.now()
    month(period, "UTC")
    was_closed = is_closed(period)
    summary = summary or RunSummary()
    started, position = time.monotonic(), after
    accounts = BillingAccount.objects.filter(organization_id__gt=after).order_by("organization_id")
    outcomes: list[AccountOutcome] = []
    for account in accounts.iterator(chunk_size=200):
        outcomes.append(_run_account(account, month(period, account.time_zone), preview, now))
        summary.add(outcomes[-1], was_closed=was_closed)
        position = account.organization_id
        if report and len(outcomes) == _REPORT_EVERY:
            report(summary, position, outcomes)
            outcomes = []
        if stop_after_s is not None and time.monotonic() - started > stop_after_s:
            break
    if report:
        report(summary, position, outcomes)
    return summary


def retry_account(
    period: str, organization_id: int, preview: bool = False, *, summary: RunSummary, now: datetime | None = None
) -> AccountOutcome:
    """Once more for an account that failed; `summary` then counts what became of it instead."""
    account = BillingAccount.objects.get(organization_id=organization_id)
    found = _run_account(account, month(period, account.time_zone), preview, now or timezone.now())
    summary.forget_failure(organization_id)
    summary.add(found, was_closed=is_closed(period))
    return found


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
            summary.add(_run_account(account, period, not is_due, now), was_closed=was_closed)
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


def _run_account(account: BillingAccount, period: Period, preview: bool, now: datetime) -> AccountOutcome:
    organization_id = account.organization_id
    if not preview and not period.is_over(now):
        return AccountOutcome(organization_id, Outcome.STILL_OPEN)
    invoice: Invoice | None = None
    try:
        invoice = draft_invoice(organization_id=organization_id, period=period.name, now=now)
        if invoice.status != InvoiceStatus.DRAFT:
            return AccountOutcome(organization_id, Outcome.ALREADY_FINAL, invoice.id)
        if not invoice.lines.exists():
            Invoice.objects.filter(id=invoice.id, status=InvoiceStatus.DRAFT).delete()
            return AccountOutcome(organization_id, Outcome.EMPTY)
        if preview:
            return AccountOutcome(organization_id, Outcome.DRAFTED, invoice.id)
        finalize_invoice(invoice, now=now)
        return AccountOutcome(organization_id, Outcome.FINALIZED, invoice.id)
    except PeriodNotClosed:
        return AccountOutcome(organization_id, Outcome.WAITING, invoice.id if invoice else None)
    except Exception as error:
        # The edge of one account: recorded and counted, and the others go on.
        logger.exception("invoice_run_failed organization_id=%s period=%s", organization_id, period.name)
        return AccountOutcome(organization_id, Outcome.FAILED, invoice.id if invoice else None, str(error))

"""Closing a month: every call of it agrees, or a named person waives what does not.

A month is a UTC month of the calls' start. What arrives after the close changes no closed figure: a correction is an
entry of the day it is made and stands on the next invoice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction

from billing.errors import InvalidPeriod, PeriodOpen, PeriodUnmatched
from billing.reconciliation.models import PeriodClose
from billing.reconciliation.selectors import MatchRate, day_rates, read_period
from billing.usage.models import RecordStatus, UsageRecord

logger = logging.getLogger(__name__)

_BATCH = 5_000
_LOCK_KEY = 0x636C6F73  # "clos"


@dataclass(frozen=True)
class PeriodState:
    """How a month stands now."""

    period: str
    start: datetime
    end: datetime
    calls: int
    equal: int
    # Neither equal nor repaired: gateway only, pending, of an unknown tenant, or still running.
    unmatched: int
    close: PeriodClose | None

    @property
    def is_closed(self) -> bool:
        return self.close is not None


def bounds_of(period: str) -> tuple[datetime, datetime]:
    """`YYYY-MM` as [start, end) in UTC."""
    try:
        start = datetime.strptime(period, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidPeriod(period) from None
    return start, datetime(start.year + start.month // 12, start.month % 12 + 1, 1, tzinfo=UTC)


def period_state(period: str) -> PeriodState:
    start, end = bounds_of(period)
    rates = day_rates(read_period(start, end))
    running = UsageRecord.objects.filter(status=RecordStatus.STARTED, started_at__gte=start, started_at__lt=end).count()
    return PeriodState(
        period,
        start,
        end,
        sum(rate.total for rate in rates),
        sum(rate.equal for rate in rates),
        sum(rate.unmatched for rate in rates) + running,
        PeriodClose.objects.filter(period=period).first(),
    )


@transaction.atomic
def close_period(*, period: str, actor_id: int, actor_name: str, waiver: str = "", now: datetime) -> PeriodClose:
    """Close a month that is over. With unmatched calls only under a waiver: a reason, kept with the person's name.

    A repeat returns the first close. Raises PeriodUnmatched where something is unmatched and no reason is given,
    PeriodOpen while the month runs.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK_KEY])
    state = period_state(period)
    if state.close is not None:
        return state.close
    if now < state.end:
        raise PeriodOpen(period, "UTC")
    if state.unmatched and not waiver.strip():
        raise PeriodUnmatched(period, state.unmatched)
    close = PeriodClose.objects.create(
        period=period,
        closed_at=now,
        actor_id=actor_id,
        actor_name=actor_name,
        calls=state.calls,
        equal=state.equal,
        unmatched=state.unmatched,
        # A reason that nothing needed is not kept: it would read as if something had been waived.
        waiver=waiver.strip() if state.unmatched else "",
    )
    logger.info("period_closed period=%s calls=%s unmatched=%s", period, close.calls, close.unmatched)
    return close


def find_close(period: str) -> PeriodClose | None:
    return PeriodClose.objects.filter(period=period).first()


def is_closed(period: str) -> bool:
    return PeriodClose.objects.filter(period=period).exists()


def closes() -> list[PeriodClose]:
    """Newest month first."""
    return list(PeriodClose.objects.order_by("-period"))


_FORGET = """
DELETE FROM billing_receipt WHERE id IN (
    SELECT id FROM billing_receipt WHERE started_at >= %s AND started_at < %s AND is_settled ORDER BY id LIMIT %s)
"""


def forget_receipts(*, now: datetime, batch: int = _BATCH) -> int:
    """Delete receipts of closed months that ended RECEIPT_RETENTION_DAYS ago; returns how many.

    In batches, a transaction each, so that nothing waits. Records, ledger and the month's figures stay; what is not
    settled stays too. 0 days keep all.
    """
    if not settings.RECEIPT_RETENTION_DAYS:
        return 0
    limit, deleted = now - timedelta(days=settings.RECEIPT_RETENTION_DAYS), 0
    for period in PeriodClose.objects.order_by("period").values_list("period", flat=True):
        if bounds_of(period)[1] <= limit:
            deleted += forget_receipts_of(period, batch=batch)
    return deleted


def forget_receipts_of(period: str, *, batch: int = _BATCH) -> int:
    """Delete the settled receipts of a month that is closed; of another, none. Returns how many."""
    if not is_closed(period):
        return 0
    deleted = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_FORGET, [*bounds_of(period), batch])
            count: int = cursor.rowcount
        deleted += count
        if count < batch:
            return deleted


CSV_HEADER = (
    "day",
    "organization_id",
    "calls",
    "equal",
    "differ",
    "unfinished",
    "engine_only",
    "gateway_only",
    "pending",
    "unsettled",
    "raw_percent",
    "strict_percent",
    "repaired_percent",
)


def csv_row(rate: MatchRate) -> tuple[str, ...]:
    return tuple(
        str(value)
        for value in (
            rate.day,
            "" if rate.organization_id is None else rate.organization_id,
            rate.total,
            rate.equal,
            rate.differ,
            rate.unfinished,
            rate.engine_only,
            rate.gateway_only,
            rate.pending,
            rate.unsettled,
            f"{rate.raw_percent:.4f}",
            f"{rate.strict_percent:.4f}",
            f"{rate.repaired_percent:.4f}",
        )
    )

"""How a period's calls ended, how long they took, and how long the credit lasts at the present pace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from billing.rollups import latencies
from billing.rollups.histograms import Latency
from billing.usage import selectors as usage
from portal.billing_pages.periods import Period

PACE = timedelta(days=7)
# Nobody plans further; past it the pace says nothing.
LONGEST_DAYS = 999

Percentiles = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Calls that failed or were cancelled; percentiles (latencies.PERCENTS) of those that completed, in ms, of the
    calls since `measured_since` where these are too many to look at (None: of all)."""

    requests: int
    failed: int
    cancelled: int
    ttft_ms: Percentiles
    e2e_ms: Percentiles
    measured_since: datetime | None

    @property
    def failed_share(self) -> float:
        return self.failed / self.requests if self.requests else 0.0


def figures(organization_id: int, period: Period, only: usage.Only = usage.EVERYTHING) -> Figures:
    """Two queries."""
    ended = {row.key: row.requests for row in usage.summary(organization_id, *period, "ending", only=only)}
    took = latencies.over_time(organization_id, *period, "total", only=only)
    by_kind = took.groups[""]
    return Figures(
        sum(ended.values()),
        ended.get("failed", 0),
        ended.get("cancelled", 0),
        by_kind[Latency.TTFT].get("", latencies.NOTHING),
        by_kind[Latency.E2E].get("", latencies.NOTHING),
        took.since,
    )


def days_left(organization_id: int, available_nano: int) -> int | None:
    """Whole days that the credit lasts at the pace of the last seven. None: nothing was spent, or longer than anyone
    plans. One query."""
    now = timezone.now()
    spent_nano = usage.spent_nano(organization_id, now - PACE, now)
    if spent_nano <= 0:
        return None
    days = max(0, available_nano) * PACE.days // spent_nano
    return days if days <= LONGEST_DAYS else None

"""What a limit would have refused of last week's calls: a look at it before it is set."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from billing.usage import selectors as usage
from portal.organizations.models import Organization
from portal.quotas.models import QuotaKind, Window
from portal.quotas.snapshot import QuotaLimit
from portal.quotas.use import keys_of, measure, window_bounds

PERIOD = timedelta(days=7)
MINUTE_US = 60_000_000
# The newest ones; a week of more is judged by these, and the pages say so.
CALLS_LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True)
class Replay:
    """`since` is the start of the first call that was looked at; `first_at` that of the first refused one."""

    calls: int
    refused: int
    since: datetime | None
    first_at: datetime | None

    @property
    def is_cut(self) -> bool:
        """Whether older calls of the week may have been left out."""
        return self.calls >= CALLS_LOOKED_AT


def calls_of_week(organization: Organization, limit: QuotaLimit) -> list[usage.FinishedCall]:
    """The newest calls of the last seven days that come under `limit`, oldest first. One or two queries."""
    filters = usage.UsageFilters(
        project_id=limit.scope_id if limit.scope == "project" else None,
        api_key_id=limit.scope_id if limit.scope == "api_key" else None,
        model=limit.model,
        start=timezone.now() - PERIOD,
    )
    key_ids = keys_of(organization.id, limit) if limit.scope == "member" else None
    return usage.finished_calls(organization.id, filters=filters, api_key_ids=key_ids, newest=CALLS_LOOKED_AT)


def replay_week(organization: Organization, limit: QuotaLimit, *, cached_percent: int) -> Replay:
    """Take them through `limit` alone, in their order. One or two queries."""
    return replay(calls_of_week(organization, limit), limit, organization.time_zone, cached_percent=cached_percent)


def replay(calls: Iterable[usage.FinishedCall], limit: QuotaLimit, time_zone: str, *, cached_percent: int) -> Replay:
    """Take `calls`, oldest first by their start, through `limit` alone. A refused call takes nothing.

    A calendar window begins with nothing used at the first call, and other limits keep what they refused.
    """
    room = _Room(limit.limit, limit.window, time_zone)
    seen = refused = 0
    since = first_at = None
    for call in calls:
        seen += 1
        since = since or call.started_at
        amount = 1 if limit.kind == QuotaKind.CONCURRENCY else measure(call.counts, limit.kind, cached_percent)
        if not room.take(amount, call):
            refused += 1
            first_at = first_at or call.started_at
    return Replay(seen, refused, since, first_at)


class _Room:
    """What is left of one limit as time goes on."""

    def __init__(self, limit: int, window: str, time_zone: str) -> None:
        self._limit = limit
        self._window = window
        self._time_zone = time_zone
        self._used = 0
        # Of a calendar window, in microseconds since 1970.
        self._ends_us = 0
        # Of calls at one time: when each call ends.
        self._ends: list[int] = []
        # Of a minute: when the bucket is full again, at the limit in a minute; times the limit, which makes it whole.
        self._full = 0
        self._is_calendar = window in (Window.DAY, Window.WEEK, Window.MONTH)

    def take(self, amount: int, call: usage.FinishedCall) -> bool:
        self._let_go(call)
        # As at the gateway: without room for anything a call is refused, even one that would take nothing.
        if self._used + max(amount, 1) > self._limit:
            return False
        if self._window == Window.MINUTE:
            self._full = max(self._full, call.started_us * self._limit) + MINUTE_US * amount
        else:
            self._used += amount
        if self._window == Window.NOW:
            heapq.heappush(self._ends, call.finished_us)
        return True

    def _let_go(self, call: usage.FinishedCall) -> None:
        now_us = call.started_us
        if self._window == Window.MINUTE:
            self._used = max(0, -((now_us * self._limit - self._full) // MINUTE_US))
        while self._ends and self._ends[0] <= now_us:
            heapq.heappop(self._ends)
            self._used -= 1
        if self._is_calendar and now_us >= self._ends_us:
            self._used = 0
            _, ends_at = window_bounds(self._window, self._time_zone, call.started_at)
            self._ends_us = usage.microseconds_of(ends_at)

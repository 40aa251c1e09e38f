"""Match rates for the operator: per organization and UTC day, as found and after repair.

Whole hours come from the rollups where these have them, the rest from the calls (rollups.py), which are counted
once for all that is asked of a period.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection

from billing.reconciliation.calls import CALLS, CALLS_IN, CALLS_OF, CLASSES, COUNTS
from billing.reconciliation.models import Receipt
from billing.reconciliation.rollups import ALL, NOBODY, Range, gaps, rolled_ranges


@dataclass(frozen=True)
class Counts:
    """Calls that reached an engine, by how record and receipt agreed."""

    total: int = 0
    equal: int = 0
    differ: int = 0
    unfinished: int = 0
    engine_only: int = 0
    gateway_only: int = 0
    pending: int = 0
    # Of engine_only: the receipts whose tenant is unknown.
    unsettled: int = 0

    @property
    def unmatched(self) -> int:
        """Neither equal nor repaired."""
        return self.gateway_only + self.pending + self.unsettled

    @property
    def raw_percent(self) -> Decimal:
        """Of the calls with two accounts, those where both said the same when first compared. A call whose account is
        missing without an end of its side counts as one that does not agree."""
        return _percent(self.equal, self.total - self.unfinished)

    @property
    def strict_percent(self) -> Decimal:
        """The same of all calls: one of which a side ended in the middle has one account, and nothing to agree with."""
        return _percent(self.equal, self.total)

    @property
    def repaired_percent(self) -> Decimal:
        """The same, after repairs."""
        return _percent(self.total - self.unmatched, self.total)


def together(rates: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*([getattr(rate, name) for name in CLASSES] for rate in rates), strict=True)))


@dataclass(frozen=True, kw_only=True)
class MatchRate(Counts):
    """Of one organization on one day. `organization_id` is None for receipts of nobody we know."""

    organization_id: int | None
    day: date


@dataclass(frozen=True, kw_only=True)
class DayRate(Counts):
    """Of all calls of one day."""

    day: date


@dataclass(frozen=True, kw_only=True)
class OrganizationRate(Counts):
    organization_id: int | None


def _percent(part: int, whole: int) -> Decimal:
    return Decimal(100) if whole == 0 else Decimal(100 * part) / Decimal(whole)


_ROLLED_DAY = "(start AT TIME ZONE 'UTC')::date"
_TOTAL, _EQUAL, _GATEWAY_ONLY = map(list(CLASSES).index, ("total", "equal", "gateway_only"))
_SUMS = ", ".join(f"SUM({name})::bigint" for name in CLASSES)
# Receipts that did not agree, of requests that may have others; theirs is not always the last word.
_UNEQUAL = """
SELECT request_id FROM billing_receipt
 WHERE match_class <> 'equal' AND is_settled = %(is_settled)s
   AND started_at >= %(start)s - interval '1 day' AND started_at < %(end)s + interval '1 day'
 ORDER BY started_at DESC LIMIT %(limit)s
"""
_MISMATCHES = """
WITH {calls}
SELECT request_id, organization_id, match_class, is_settled, started_at FROM calls
 WHERE {which} ORDER BY is_settled, started_at DESC LIMIT %(limit)s
"""
_OF_RECEIPTS = _MISMATCHES.format(calls=CALLS_OF, which="match_class NOT IN ('equal', 'gateway_only')")
_WITHOUT_RECEIPT = _MISMATCHES.format(calls=CALLS_IN, which="match_class = 'gateway_only'")

Key = tuple[Any, ...]


@dataclass(frozen=True)
class UnrolledHour:
    """Of one organization in the part of an hour that is in the period; None for receipts of nobody we know."""

    start: datetime
    organization_id: int | None
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Period:
    """What starts in [start, end): the ranges that the rollups have, and the counts of the hours that they have not."""

    start: datetime
    end: datetime
    rolled: list[Range]
    unrolled: list[UnrolledHour]


def read_period(start: datetime, end: datetime) -> Period:
    """One query, and one for each range without rollups: mostly the last hours."""
    rolled = rolled_ranges(start, end)
    unrolled: list[UnrolledHour] = []
    with connection.cursor() as cursor:
        for since, until in gaps(start, end, rolled):
            cursor.execute(
                f"WITH {CALLS} SELECT date_trunc('hour', started_at, 'UTC'), organization_id, {COUNTS}"  # noqa: S608
                " FROM calls GROUP BY 1, 2",
                {"start": since, "end": until},
            )
            unrolled += [UnrolledHour(row[0], row[1], row[2:]) for row in cursor.fetchall()]
    return Period(start, end, rolled, unrolled)


def _rolled(period: Period, keys: Sequence[str], which: str) -> list[Key]:
    """Rows of keys and counts from the rollups; `which` picks theirs. One query."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(keys)}, {_SUMS}"  # noqa: S608 - constants only
            " FROM unnest(%s::timestamptz[], %s::timestamptz[]) AS rolled (since, until)"
            f" JOIN billing_match_rollup ON start >= since AND start < until AND {which}"
            f" GROUP BY {', '.join(str(place) for place in range(1, len(keys) + 1))}",
            [[since for since, _ in period.rolled], [until for _, until in period.rolled]],
        )
        rows: list[Key] = cursor.fetchall()
        return rows


def _added(rows: Iterable[Key], key_count: int) -> dict[Key, list[int]]:
    sums: dict[Key, list[int]] = {}
    for row in rows:
        kept = sums.setdefault(row[:key_count], [0] * len(CLASSES))
        for place, count in enumerate(row[key_count:]):
            kept[place] += count
    return sums


def match_rates(start: datetime, end: datetime) -> list[MatchRate]:
    """Of what started in [start, end): a row for each day and organization that called, nobody last."""
    period = read_period(start, end)
    rows = _rolled(period, (_ROLLED_DAY, f"NULLIF(organization_id, {NOBODY})"), f"organization_id <> {ALL}")
    rows += [(_day(hour), hour.organization_id, *hour.counts) for hour in period.unrolled]
    found = [
        MatchRate(*counts, day=day, organization_id=organization_id)
        for (day, organization_id), counts in _added(rows, 2).items()
    ]
    return sorted(found, key=lambda rate: (rate.day, rate.organization_id is None, rate.organization_id or 0))


def day_rates(period: Period) -> list[DayRate]:
    """A row for each day with calls, in order. One query."""
    rows = _rolled(period, (_ROLLED_DAY,), f"organization_id = {ALL}")
    rows += [(_day(hour), *hour.counts) for hour in period.unrolled]
    return [DayRate(*counts, day=day) for (day,), counts in sorted(_added(rows, 1).items())]


def _day(hour: UnrolledHour) -> date:
    return hour.start.astimezone(UTC).date()


def organization_rates(period: Period, *, limit: int) -> list[OrganizationRate]:
    """The organizations of which some call did not agree by itself, counted over the rolled hours with such a call and
    the unrolled ones: most unmatched first, then most repaired. One query."""
    rows = _rolled(period, (f"NULLIF(organization_id, {NOBODY})",), f"organization_id <> {ALL} AND equal < total")
    rows += [(hour.organization_id, *hour.counts) for hour in period.unrolled]
    differing = [
        OrganizationRate(*counts, organization_id=organization_id)
        for (organization_id,), counts in _added(rows, 1).items()
        if counts[_EQUAL] < counts[_TOTAL]
    ]
    return sorted(differing, key=lambda rate: (-rate.unmatched, rate.equal - rate.total, rate.organization_id or 0))[
        :limit
    ]


@dataclass(frozen=True)
class Mismatch:
    request_id: UUID
    organization_id: int | None
    match_class: str
    is_settled: bool
    age: timedelta


def mismatches(period: Period, *, now: datetime, limit: int = 200) -> list[Mismatch]:
    """Calls whose record and receipt did not agree by themselves; open ones first, with their age."""
    found: list[tuple[UUID, int | None, str, bool, datetime]] = []
    # Twice as many receipts as rows are shown, since a request may have two.
    parameters: dict[str, Any] = {"start": period.start, "end": period.end, "limit": 2 * limit}
    with connection.cursor() as cursor:
        request_ids: list[UUID] = []
        for is_settled in (False, True):
            cursor.execute(_UNEQUAL, {**parameters, "is_settled": is_settled})
            request_ids += [row[0] for row in cursor.fetchall()]
        if request_ids:
            cursor.execute(_OF_RECEIPTS, {**parameters, "request_ids": request_ids})
            found += cursor.fetchall()
        hours, organization_ids = _without_receipt(period, limit)
        if hours:
            cursor.execute(_WITHOUT_RECEIPT, {**parameters, "hours": hours, "organization_ids": organization_ids})
            found += cursor.fetchall()
    found.sort(key=lambda row: (row[3], now - row[4]))
    return [
        Mismatch(request_id, organization_id, match_class, is_settled, now - started_at)
        for request_id, organization_id, match_class, is_settled, started_at in found[:limit]
    ]


def _without_receipt(period: Period, limit: int) -> tuple[list[datetime], list[int]]:
    """The newest hours and organizations, place by place, that have `limit` calls without a receipt. One query."""
    keys = ("start", "organization_id")
    rows = _rolled(period, keys, f"organization_id <> {ALL} AND equal < total AND gateway_only > 0")
    rows += [(hour.start, hour.organization_id, *hour.counts) for hour in period.unrolled]
    lacking = sorted(
        ((key, counts[_GATEWAY_ONLY]) for key, counts in _added(rows, 2).items() if counts[_GATEWAY_ONLY]), reverse=True
    )
    hours: list[datetime] = []
    organization_ids: list[int] = []
    count = 0
    for (hour, organization_id), of_hour in lacking:
        # All of the hour in which the limit is reached: the newest calls may be of any of its organizations.
        if count >= limit and hour != hours[-1]:
            break
        hours.append(hour)
        organization_ids.append(organization_id)
        count += of_hour
    return hours, organization_ids


def receipt_of(organization_id: int, request_id: UUID) -> Receipt | None:
    """What the engine or upstream said of a request of the organization, the served one first. None: nothing yet, or it
    keeps no receipts. One query."""
    found = Receipt.objects.filter(request_id=request_id, organization_id=organization_id).exclude(
        match_class="pending"
    )
    return found.order_by("status", "id").first()

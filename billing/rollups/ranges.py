"""Ranges of time in parts that rollups have: whole days where they fit, hours at their edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from billing.rollups.models import DAY_S, HOUR_S

HOUR = timedelta(hours=1)
# What steps are called, as Python says it of a local time.
LOCAL_KEYS = {"hour": "%Y-%m-%dT%H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}


class Split(NamedTuple):
    """A range in parts that do not overlap: to be summed from records, and from rollups of a grain."""

    raw: list[tuple[datetime, datetime]]
    rolled: list[tuple[datetime, datetime, int]]


def split(start: datetime, end: datetime, step: str, zone: ZoneInfo, grains_s: Sequence[int]) -> Split:
    first, last = ceil(start, HOUR_S), floor(end, HOUR_S)
    if first >= last:
        return Split([(start, end)], [])
    raw = [(start, first), (last, end)]
    if not step:
        return Split(raw, list(cover(first, last, grains_s)))
    rolled = []
    for hour in _divided_hours(first, last, step, zone):
        raw.append((hour, hour + HOUR))
        rolled.append((first, hour, HOUR_S))
        first = hour + HOUR
    rolled.append((first, last, HOUR_S))
    rolled = [part for part in rolled if part[0] < part[1]]
    if step == "month":
        months = [month for since, until, _ in rolled for month in by_months(since, until, zone)]
        rolled = [part for since, until in months for part in cover(since, until, grains_s)]
    if step == "day":
        rolled = [part for since, until, _ in rolled for part in _by_local_days(since, until, zone)]
    return Split(raw, rolled)


def cover(since: datetime, until: datetime, grains_s: Sequence[int]) -> Iterator[tuple[datetime, datetime, int]]:
    """A range of whole buckets of the last grain, from rollups as long as they fit, the longest first."""
    if since >= until:
        return
    grain_s, *shorter = grains_s
    first, last = ceil(since, grain_s), floor(until, grain_s)
    if first >= last:
        yield from cover(since, until, shorter)
        return
    yield first, last, grain_s
    yield from cover(since, first, shorter)
    yield from cover(last, until, shorter)


def by_months(since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
    """Cut at the local months' borders, so that no UTC day of a part belongs to two of them."""
    while since < until:
        local = since.astimezone(zone)
        border = datetime(local.year + local.month // 12, local.month % 12 + 1, 1, tzinfo=zone).astimezone(UTC)
        yield since, min(border, until)
        since = border


def by_days(since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
    """Cut at the local days' borders."""
    while since < until:
        day = since.astimezone(zone).date() + timedelta(days=1)
        border = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
        yield since, min(border, until)
        since = border


def by_hours(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    while since < until:
        yield since, since + HOUR
        since += HOUR


def _by_local_days(since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime, int]]:
    """Days where the zone's are UTC's, hours where they are not; neighbours together."""
    first, grain_s = since, 0
    for day, border in by_days(since, until, zone):
        grain_of_day_s = DAY_S if day == floor(day, DAY_S) and border == day + timedelta(days=1) else HOUR_S
        if grain_s not in (0, grain_of_day_s):
            yield first, day, grain_s
            first = day
        grain_s = grain_of_day_s
    if grain_s:
        yield first, until, grain_s


def _divided_hours(first: datetime, last: datetime, step: str, zone: ZoneInfo) -> Iterator[datetime]:
    """UTC hours that belong to two local groups: in zones whose offset is no whole number of hours."""
    if zone.key == "UTC":
        return
    if step == "hour":
        for hour, _ in by_hours(first, last):
            if hour.astimezone(zone).minute:
                yield hour
        return
    cut = by_days if step == "day" else by_months
    for _, border in cut(first, last, zone):
        if (hour := floor(border, HOUR_S)) != border:
            yield hour


def floor(moment: datetime, grain_s: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // grain_s * grain_s, UTC)


def ceil(moment: datetime, grain_s: int) -> datetime:
    below = floor(moment, grain_s)
    return below if below == moment else below + timedelta(seconds=grain_s)

"""Ranges of time in parts that rollups have: the nearest long buckets, corrected at their edges by shorter ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.utils import timezone

from billing.rollups.models import HOUR_S

HOUR = timedelta(hours=1)
# What steps are called, as Python says it of a local time.
LOCAL_KEYS = {"hour": "%Y-%m-%dT%H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}
Range = tuple[datetime, datetime]


class Part(NamedTuple):
    """Whole buckets of a grain, to be added, or taken away where `sign` is -1."""

    since: datetime
    until: datetime
    grain_s: int
    sign: int = 1
    # What they count in; empty: each in the step in which it begins.
    step: str = ""


class Split(NamedTuple):
    """A range as what is summed from records, and as what the rollups answer, in parts."""

    raw: list[Range]
    rolled: list[Range]
    parts: list[Part]


def split(start: datetime, end: datetime, step: str, zone: ZoneInfo, grains_s: Sequence[int]) -> Split:
    """`step`: none, or one of LOCAL_KEYS, whose borders are those of `zone`."""
    first, last = ceil(start, HOUR_S), floor(end, HOUR_S)
    if first >= last:
        return Split([(start, end)], [], [])
    raw, rolled, parts = [(start, first)], [], []
    for name, since, until in steps(first, last, step, zone):
        # An hour that two steps share, where the zone's offset is no whole number of hours, is read from records.
        whole = ceil(since, HOUR_S), floor(until, HOUR_S)
        raw += [(since, min(whole[0], until)), (max(whole), until)]
        rolled.append(whole)
        for part in cover(*whole, grains_s):
            is_inside = since <= part.since and part.until <= until
            parts.append(part if is_inside else part._replace(step=name))
    raw.append((last, end))
    return Split(_joined_ranges(raw), _joined_ranges(rolled), list(_joined(parts)))


def cover(since: datetime, until: datetime, grains_s: Sequence[int], sign: int = 1) -> Iterator[Part]:
    """A range of whole buckets of the last grain, from the nearest buckets of the longer ones, the longest first: what
    these lack is added, and what they have too much is taken away."""
    if since >= until:
        return
    grain_s, *shorter = grains_s
    if not shorter:
        yield Part(since, until, grain_s, sign)
        return
    first, last = nearest(since, grain_s), nearest(until, grain_s)
    if first >= last or 2 * (until - since) <= timedelta(seconds=grain_s):
        yield from cover(since, until, shorter, sign)
        return
    yield Part(first, last, grain_s, sign)
    yield from cover(since, first, shorter, sign)
    yield from cover(first, since, shorter, -sign)
    yield from cover(last, until, shorter, sign)
    yield from cover(until, last, shorter, -sign)


def steps(since: datetime, until: datetime, step: str, zone: ZoneInfo) -> Iterator[tuple[str, datetime, datetime]]:
    """Names and ranges, cut at the borders of the zone's hours, days or months; without a step, all of it as ""."""
    if not step:
        yield "", since, until
        return
    after = _AFTER[step]
    while since < until:
        local = since.astimezone(zone)
        border = min(after(local).astimezone(UTC), until)
        yield f"{local:{LOCAL_KEYS[step]}}", since, border
        since = border


def _after_day(local: datetime) -> datetime:
    day = local.date() + timedelta(days=1)
    return datetime(day.year, day.month, day.day, tzinfo=local.tzinfo)


_AFTER: dict[str, Callable[[datetime], datetime]] = {
    # In UTC: an hour that a clock shows twice is two.
    "hour": lambda local: local.astimezone(UTC) + timedelta(minutes=60 - local.minute),
    "day": _after_day,
    "month": lambda local: datetime(local.year + local.month // 12, local.month % 12 + 1, 1, tzinfo=local.tzinfo),
}


def array(values: Iterable[object]) -> str:
    """The literal of an array, for values without quotes: the driver takes a millisecond for each thirty moments."""
    return "{" + ",".join(f'"{value}"' for value in values) + "}"


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Neighbours together, as far as each of their buckets tells its step."""
    last: Part | None = None
    for part in parts:
        if last and not last.step and part == last._replace(since=last.until, until=part.until):
            last = last._replace(until=part.until)
            continue
        if last:
            yield last
        last = part
    if last:
        yield last


def _joined_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Without empty ones, and neighbours together."""
    joined: list[Range] = []
    for since, until in ranges:
        if since >= until:
            continue
        if joined and joined[-1][1] == since:
            joined[-1] = (joined[-1][0], until)
        else:
            joined.append((since, until))
    return joined


def nearest(moment: datetime, grain_s: int) -> datetime:
    """The border with the fewest rows between: none have started after now."""
    below, above = floor(moment, grain_s), ceil(moment, grain_s)
    return below if moment - below <= min(above, max(timezone.now(), moment)) - moment else above


def floor(moment: datetime, grain_s: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // grain_s * grain_s, UTC)


def ceil(moment: datetime, grain_s: int) -> datetime:
    below = floor(moment, grain_s)
    return below if below == moment else below + timedelta(seconds=grain_s)

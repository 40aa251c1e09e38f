"""Parts of ranges: whatever they add and take away, each hour of the range is left once, in its step."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from billing.rollups.models import DAY_S, FOUR_WEEKS_S, HOUR_S, WEEK_S
from billing.rollups.ranges import HOUR, LOCAL_KEYS, ceil, cover, floor, split, steps

GRAINS = [(DAY_S, HOUR_S), (WEEK_S, DAY_S, HOUR_S), (FOUR_WEEKS_S, DAY_S, HOUR_S)]
# With hours that begin in the middle of hours, and clocks that change by an hour and by half of one.
ZONES = ["UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kathmandu", "Australia/Lord_Howe"]


def some_range(chance: random.Random) -> tuple[datetime, datetime]:
    """Of a minute to five months; some are not over yet."""
    middle = datetime.now(UTC) if chance.random() < 0.5 else datetime(2026, 4, 5, 12, tzinfo=UTC)
    length = timedelta(minutes=60 * 24 * 150 * chance.random() ** 4 + 1)
    start = middle - length * chance.random()
    return start, start + length


def hours_of(since: datetime, until: datetime) -> list[datetime]:
    return [since + number * HOUR for number in range((until - since) // HOUR)]


@pytest.mark.parametrize("grains_s", GRAINS)
def test_a_cover_leaves_each_hour_once_and_none_beside(grains_s: tuple[int, ...]) -> None:
    chance = random.Random(1)
    for _ in range(150):
        start, end = some_range(chance)
        since, until = floor(start, HOUR_S), ceil(end, HOUR_S)
        left: Counter[datetime] = Counter()
        read = 0
        for part in cover(since, until, grains_s):
            assert floor(part.since, part.grain_s) == part.since < part.until == floor(part.until, part.grain_s)
            read += (part.until - part.since) // timedelta(seconds=part.grain_s)
            for hour in hours_of(part.since, part.until):
                left[hour] += part.sign
        assert {hour: count for hour, count in left.items() if count} == dict.fromkeys(hours_of(since, until), 1)
        if until < datetime.now(UTC) - timedelta(days=28):
            assert read <= (until - since) // HOUR


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("step", ["", *LOCAL_KEYS])
def test_a_split_leaves_each_minute_once_in_its_step(zone: str, step: str) -> None:
    chance = random.Random(2)
    local = ZoneInfo(zone)
    for number in range(8):
        start, end = some_range(chance)
        parts = split(start, end, step, local, GRAINS[number % len(GRAINS)])
        left: Counter[tuple[str, datetime]] = Counter()
        for part in parts.parts:
            for hour in hours_of(part.since, part.until):
                bucket = floor(hour, part.grain_s).astimezone(local)
                left[part.step or (f"{bucket:{LOCAL_KEYS[step]}}" if step else ""), hour] += part.sign
        expected = {
            (f"{hour.astimezone(local):{LOCAL_KEYS[step]}}" if step else "", hour): 1
            for since, until in parts.rolled
            for hour in hours_of(since, until)
        }
        assert {found: count for found, count in left.items() if count} == expected
        ranges = sorted([*parts.raw, *parts.rolled])
        assert (ranges[0][0], ranges[-1][1]) == (start, end)
        assert all(before[1] == after[0] for before, after in pairwise(ranges))
        for since, until in parts.rolled if step else []:
            for hour in hours_of(since, until):
                assert len(list(steps(hour, hour + HOUR, step, local))) == 1

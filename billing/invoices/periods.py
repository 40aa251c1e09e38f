"""Billing months: half-open, from local midnight to local midnight, whatever the clocks do in between."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from billing.errors import InvalidPeriod


@dataclass(frozen=True)
class Period:
    """`[start, end)`, both in UTC."""

    name: str
    time_zone: str
    start: datetime
    end: datetime

    def is_over(self, now: datetime) -> bool:
        return now >= self.end


def month(name: str, time_zone: str) -> Period:
    """The month `YYYY-MM` in the zone."""
    match = re.fullmatch(r"(\d{4})-(\d{2})", name, flags=re.ASCII)
    if match is None or not 1 <= int(match[2]) <= 12 or not 2000 <= int(match[1]) <= 9998:
        raise InvalidPeriod(name)
    year, number = int(match[1]), int(match[2])
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    return Period(name, time_zone, _midnight(year, number, time_zone), _midnight(*following, time_zone))


def month_of(moment: datetime, time_zone: str) -> Period:
    return month(f"{moment.astimezone(ZoneInfo(time_zone)):%Y-%m}", time_zone)


def month_before(moment: datetime, time_zone: str) -> Period:
    local = moment.astimezone(ZoneInfo(time_zone))
    year, number = (local.year - 1, 12) if local.month == 1 else (local.year, local.month - 1)
    return month(f"{year:04d}-{number:02d}", time_zone)


def _midnight(year: int, number: int, time_zone: str) -> datetime:
    return datetime(year, number, 1, tzinfo=ZoneInfo(time_zone)).astimezone(UTC)

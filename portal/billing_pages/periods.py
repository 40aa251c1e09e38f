"""Periods as the reader's calendar has them, and sums over usage rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.usage.selectors import UsageSum


class Period(NamedTuple):
    """Half-open: [start, end)."""

    start: datetime
    end: datetime


RANGES = {1: _("24 hours"), 7: _("7 days"), 30: _("30 days"), 90: _("90 days"), 365: _("1 year")}
DEFAULT_RANGE = 7


def midnight(moment: datetime) -> datetime:
    """The start of the local day; built from the date, since a day may have 23 or 25 hours."""
    local = timezone.localtime(moment)
    return timezone.make_aware(datetime(local.year, local.month, local.day))  # noqa: DTZ001 made aware here


def today() -> Period:
    now = timezone.now()
    return Period(midnight(now), now)


def this_month() -> Period:
    now = timezone.localtime()
    return Period(timezone.make_aware(datetime(now.year, now.month, 1)), timezone.now())  # noqa: DTZ001 made aware here


def last_days(days: int) -> Period:
    """Whole local days, today included; one day is the last 24 hours."""
    now = timezone.now()
    if days == 1:
        return Period(now - timedelta(hours=24), now)
    return Period(midnight(now - timedelta(days=days - 1)), now)


def days_in(period: Period) -> list[str]:
    """ISO days of the period, the reader's."""
    first, last = timezone.localdate(period.start), timezone.localdate(period.end)
    return [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]


def hours_in(period: Period) -> list[str]:
    """Hours in the form that `summary` groups by; a repeated hour of a clock change is one."""
    names: dict[str, None] = {}
    moment = period.start
    while moment <= period.end:
        names[timezone.localtime(moment).strftime("%Y-%m-%dT%H:00")] = None
        moment += timedelta(hours=1)
    names[timezone.localtime(period.end).strftime("%Y-%m-%dT%H:00")] = None
    return list(names)


def months_in(period: Period) -> list[str]:
    """Months of the period, the reader's, as YYYY-MM."""
    return list(dict.fromkeys(day[:7] for day in days_in(period)))


def totals(rows: Iterable[UsageSum]) -> UsageSum:
    """The sum of the rows: zeros when there are none."""
    fields = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_nano")
    rows = list(rows)
    return UsageSum("", *(sum(getattr(row, field) for row in rows) for field in fields))

"""A month's share of a fee, by whole days: pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from billing.money import divide_half_even


@dataclass(frozen=True)
class Share:
    days: int
    days_of_month: int
    amount_minor: int


def share_of(
    *, quantity: int, unit_amount_minor: int, starts_on: date, ends_on: date | None, first: date, after: date
) -> Share | None:
    """What a fee running [starts_on, ends_on) costs in the month [first, after); None outside of it.

    The amount is rounded once. Fees that follow each other share the days of a month without gap or overlap.
    """
    begin = max(starts_on, first)
    end = after if ends_on is None else min(ends_on, after)
    days, days_of_month = (end - begin).days, (after - first).days
    if days <= 0:
        return None
    return Share(days, days_of_month, divide_half_even(quantity * unit_amount_minor * days, days_of_month))

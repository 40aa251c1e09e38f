"""What is done about an unpaid invoice, and when: pure. The words of it are in docs/operations/dunning.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Step:
    """`after_due` counts from the due date, `after_last` from the step before; both must have passed."""

    name: str
    after_due: timedelta
    after_last: timedelta
    tries_card: bool = False
    suspends: bool = False


def _days(number: int) -> timedelta:
    return timedelta(days=number)


# Nobody is suspended without a final warning a week before, however late the job runs.
STEPS = (
    Step("upcoming", _days(-3), _days(0)),
    Step("overdue", _days(1), _days(1), tries_card=True),
    Step("reminder", _days(7), _days(3), tries_card=True),
    Step("final_warning", _days(14), _days(5), tries_card=True),
    Step("suspension", _days(21), _days(7), suspends=True),
)


def next_step(due_at: datetime, done: Mapping[str, datetime], now: datetime) -> Step | None:
    """The one step to take now, if any. `done` is when each was taken.

    A job that slept takes the steps one by one: the first notice of what is due is skipped once the date has passed,
    no other is.
    """
    last: datetime | None = None
    for step in STEPS:
        if step.name in done:
            last = done[step.name]
            continue
        if step.name == "upcoming" and now >= due_at:
            continue
        is_due = now >= due_at + step.after_due
        return step if is_due and (last is None or now >= last + step.after_last) else None
    return None


def suspension_at(due_at: datetime, done: Mapping[str, datetime]) -> datetime:
    """When the organization is suspended if nothing is paid, from what was done so far."""
    final, suspension = STEPS[-2], STEPS[-1]
    warned_at = done.get(final.name, due_at + final.after_due)
    return max(due_at + suspension.after_due, warned_at + suspension.after_last)

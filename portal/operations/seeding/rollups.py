"""The rollups, made from the records: of some days of one table at a time, from two sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from django.apps import apps

from billing.rollups.services import LONG_ROLLUPS, ROLLUP_TABLES, add_up_days, fill_days
from portal.operations.seeding.indexes import without_indexes
from portal.operations.seeding.plan import Say, Size
from portal.operations.seeding.sessions import Task, run_together

# A statement's worth: what it groups has room in memory.
RECORDS_AT_ONCE = 1_000_000


def make_rollups(size: Size, say: Say, *, beside: Sequence[Task]) -> None:
    """Also of the corrections, which are in the records' sums and so not pending any more. `beside` runs meanwhile."""
    apps.get_model("billing", "RollupPending").objects.all().delete()
    days_at_once = min(max(1, RECORDS_AT_ONCE * size.days // size.records), size.days)

    def fill(table: str, first: datetime) -> str:
        until = min(first + timedelta(days=days_at_once), size.end + timedelta(days=1))
        count = fill_days(table, first, until, now=size.end)
        return f"{count:,} rows of {table} from {first:%Y-%m-%d}"

    def add_up(name: str) -> str:
        return f"{add_up_days(name, size.start, size.end + timedelta(days=1)):,} {name.replace('_', ' ')}"

    starts = [size.start + timedelta(days=number) for number in range(0, size.days + 1, days_at_once)]
    with without_indexes(*ROLLUP_TABLES, say=say):
        run_together([*beside, *(partial(fill, table, first) for first in starts for table in ROLLUP_TABLES)], say)
        run_together([partial(add_up, name) for name in LONG_ROLLUPS], say)

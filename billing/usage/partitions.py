"""Months of the records' table. Request ids follow time, so a range of ids is a range of time: a record is found in its
month by its id alone, and the id stays unique over all months.

Ids of another kind (version 4, from a client that spoke to an engine itself) lie in the partition of the rest.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.db import IntegrityError, OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from billing.usage.models import RetiredMonth
from billing.usage.request_ids import floor_of

logger = logging.getLogger(__name__)

MONTHS_AHEAD = 3
# The table is locked while a month is added or removed; who cannot get the lock tries again in an hour.
LOCK_TIMEOUT = "2s"


def month_starts(now: datetime, count: int) -> list[datetime]:
    """The first moments of this month (UTC) and of the `count` after it."""
    first = now.year * 12 + now.month - 1
    return [datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC) for number in range(first, first + count + 1)]


def make_partitions(*, now: datetime, months_ahead: int = MONTHS_AHEAD) -> list[str]:
    """Make the partitions of the coming months; returns the names of the new ones. A repeat makes none.

    Each is empty when it is made, so this takes milliseconds once nobody holds the table; if that takes longer than
    LOCK_TIMEOUT, the next run makes them. A month of which the rest has a row already, by chance or because nobody
    made it in time, stays in the rest, where its rows are found as well.
    """
    made = []
    for start, end in pairwise(month_starts(now, months_ahead + 1)[1:]):
        name = f"billing_usage_record_{start:%Y_%m}"
        try:
            if _make(name, start, end):
                made.append(name)
        except IntegrityError:
            logger.error("partition_not_made name=%s reason=rows of it are in billing_usage_record_rest", name)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            logger.warning("partition_not_made name=%s reason=the table is held by another", name)
            break
    return made


def is_lock_timeout(error: OperationalError) -> bool:
    return isinstance(error.__cause__, LockNotAvailable)


def _make(name: str, start: datetime, end: datetime) -> bool:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        cursor.execute("SELECT to_regclass(%s)", [name])
        if cursor.fetchone()[0] is not None:
            return False
        cursor.execute(
            f"CREATE TABLE {name} PARTITION OF billing_usage_record FOR VALUES FROM (%s) TO (%s)",
            [floor_of(start), floor_of(end)],
        )
        return True


def partition_sizes() -> dict[str, int]:
    """Rows of each partition, as the planner estimates them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT part.relname, GREATEST(part.reltuples, 0)::bigint FROM pg_inherits"
            " JOIN pg_class part ON part.oid = inhrelid WHERE inhparent = 'billing_usage_record'::regclass ORDER BY 1"
        )
        return dict(cursor.fetchall())


def retired_months() -> list[RetiredMonth]:
    """Newest first."""
    return list(RetiredMonth.objects.order_by("-period", "-id"))


def retired_in(start: datetime, end: datetime) -> RetiredMonth | None:
    """A month with rows of [start, end) that are gone, if there is one."""
    first, last = f"{start.astimezone(UTC):%Y-%m}", f"{end.astimezone(UTC) - timedelta(microseconds=1):%Y-%m}"
    return RetiredMonth.objects.filter(period__gte=first, period__lte=last).order_by("period").first()

"""Match rates by hour, so that a page over months reads thousands of rows and not millions of calls.

An hour that ended two hours ago is rolled up: a row for each organization and one for all together. What changes an
hour later (a late receipt, a late finish) takes it out of `MatchHour` by triggers, in the transaction that changes it,
and the next run rolls it again; until then its rates come from the calls. So rates are exact at every moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from billing.reconciliation.calls import CALLS, CLASSES, COUNTS

HOUR = timedelta(hours=1)
# Receipts and finishes mostly come within seconds; an hour that is rolled too early is rolled again.
SETTLING = timedelta(hours=2)
# A month that is closed early in the next one, and the page's days.
ROLLED_BACK = timedelta(days=62)
# One statement's worth.
LONGEST_RUN = timedelta(days=1)
# In place of an organization.
ALL, NOBODY = 0, -1
# The triggers hold it shared, from the change to its commit: nothing is rolled from a state that is about to change.
_LOCK_KEY = 0x6D617463  # "matc"

_ROLL = f"""
WITH {CALLS}, of_tenants AS (
    SELECT date_trunc('hour', started_at, 'UTC') AS start, COALESCE(organization_id, {NOBODY}) AS organization_id,
           {COUNTS}
      FROM calls GROUP BY 1, 2
)
INSERT INTO billing_match_rollup (start, organization_id, {", ".join(CLASSES)})
SELECT start, organization_id, {", ".join(CLASSES)} FROM of_tenants
UNION ALL
SELECT start, {ALL}, {", ".join(f"SUM({name})" for name in CLASSES)} FROM of_tenants GROUP BY start
"""  # noqa: S608 - constants only
_MARK = """
INSERT INTO billing_match_hour (start)
SELECT generate_series(%(start)s::timestamptz, %(end)s::timestamptz - interval '1 hour', interval '1 hour')
ON CONFLICT DO NOTHING
"""
# Hours that follow each other are as far from their number in the row.
_RANGES = """
SELECT MIN(start), MAX(start) + interval '1 hour'
  FROM (SELECT start, start - interval '1 hour' * row_number() OVER (ORDER BY start) AS run
          FROM billing_match_hour WHERE start >= %s AND start <= %s) hours
 GROUP BY run ORDER BY 1
"""
# From, and until without.
Range = tuple[datetime, datetime]


def roll_hours(*, now: datetime) -> int:
    """Roll up every hour that is due, newest first, a transaction for a run of hours; returns how many hours."""
    end = _floor(now - SETTLING)
    count = 0
    start = end - ROLLED_BACK
    for since, until in reversed(list(gaps(start, end, rolled_ranges(start, end)))):
        while since < until:
            first = max(since, until - LONGEST_RUN)
            _roll(first, until)
            count += (until - first) // HOUR
            until = first
    return count


@transaction.atomic
def _roll(start: datetime, end: datetime) -> None:
    period = {"start": start, "end": end}
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK_KEY])
        cursor.execute("DELETE FROM billing_match_rollup WHERE start >= %(start)s AND start < %(end)s", period)
        cursor.execute(_ROLL, period)
        cursor.execute(_MARK, period)


def rolled_ranges(start: datetime, end: datetime) -> list[Range]:
    """The whole hours of [start, end) whose rates stand in the rollups, in order, neighbours together. One query."""
    with connection.cursor() as cursor:
        cursor.execute(_RANGES, [start, end - HOUR])
        ranges: list[Range] = cursor.fetchall()
        return ranges


def gaps(start: datetime, end: datetime, rolled: list[Range]) -> Iterator[Range]:
    """The parts of [start, end) outside these ranges."""
    for since, until in rolled:
        if start < since:
            yield start, since
        start = until
    if start < end:
        yield start, end


def _floor(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)

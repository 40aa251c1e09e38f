"""Keeps the rollups: takes what is pending, makes any range again from the records, forgets old minutes.

Only one of these runs at a time (an advisory lock); readers and gateways wait for none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from billing.errors import RecordsRetired
from billing.rollups.failures import NAMES, class_sql
from billing.rollups.histograms import COUNT_BITS, Latency, slot_sql
from billing.rollups.models import (
    ALL_ORGANIZATIONS,
    DAY_S,
    FOUR_WEEKS_S,
    GRAINS_S,
    HOUR_S,
    MINUTE_S,
    NONE,
    WEEK_S,
)
from billing.rollups.ranges import ceil, floor
from billing.usage.partitions import month_starts, retired_in

# A view of 24 hours, and a day to spare.
MINUTES_KEPT = timedelta(hours=48)
BATCH = 5_000
_LOCK_KEY = 0x726F6C6C  # "roll"

_SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_nano")
_SERVICE_SUMS = (*_SUMS, "context_token_ms", "cancelled", *(f"failed_{name}" for name in NAMES))
_SERVICE_KEYS = ("organization_id", "grain_s", "start", "model", "deployment_id")
_USAGE_KEYS = ("organization_id", "grain_s", "start", "project_id", "api_key_id", "model", "protocol", "status")

_USER_KEYS = ("organization_id", "grain_s", "start", "end_user")
_PROJECT_KEYS = ("organization_id", "grain_s", "start", "project_id")
_KEY_KEYS = ("organization_id", "grain_s", "start", "project_id", "api_key_id")
_MONTH_KEYS = ("start", "organization_id")

_SLOTS = ", ".join(
    (
        f"CASE WHEN is_stream THEN {slot_sql(Latency.TTFT, 'ttft_ms')} END",
        f"CASE WHEN is_stream AND completion_tokens > 1 AND duration_ms >= ttft_ms THEN"
        f" {slot_sql(Latency.ITL, '((duration_ms - ttft_ms) / (completion_tokens - 1))')} END",
        slot_sql(Latency.E2E, "duration_ms"),
    )
)
# The prompt lies in the cache from start to end; the output grows there evenly from the first token on. Queueing counts
# with it, since no record has it apart, and pages that several calls share count for each of them.
_CONTEXT = """
COALESCE(round(prompt_tokens * duration_ms
               + completion_tokens * (duration_ms - LEAST(COALESCE(ttft_ms, 0), duration_ms)) / 2), 0)::bigint
"""
_RECORD = f"""
SELECT record.organization_id, COALESCE(project_id, {NONE}) AS project_id, COALESCE(api_key_id, {NONE}) AS api_key_id,
       model, protocol, end_user, COALESCE(deployment_id, {NONE}) AS deployment_id, status, error_code, started_at,
       1 AS requests,
       prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_nano, {_CONTEXT} AS context_token_ms,
       CASE WHEN status = 'completed' THEN array_remove(ARRAY[{_SLOTS}]::int[], NULL) ELSE '{{}}'::int[] END AS slots
"""
_ADJUSTMENT = f"""
SELECT record.organization_id, COALESCE(project_id, {NONE}), COALESCE(api_key_id, {NONE}), model, protocol, end_user,
       COALESCE(deployment_id, {NONE}), status, error_code, started_at, 0, adjustment.prompt_tokens,
       adjustment.cached_tokens, adjustment.completion_tokens, adjustment.reasoning_tokens, adjustment.cost_nano, 0,
       '{{}}'::int[]
"""
# What is pending, taken away.
_TAKEN = f"""
taken AS (
    DELETE FROM billing_rollup_pending WHERE id IN (SELECT id FROM billing_rollup_pending ORDER BY id LIMIT %(limit)s)
    RETURNING record_id, adjustment_id
), facts AS (
    {_RECORD} FROM taken JOIN billing_usage_record record ON record.request_id = taken.record_id
    UNION ALL
    {_ADJUSTMENT} FROM taken JOIN billing_usage_adjustment adjustment ON adjustment.id = taken.adjustment_id
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
)
"""  # noqa: S608 - constants only
# Everything that started in a range, whether pending or not.
_FROM_RECORDS = f"""
facts AS (
    {_RECORD} FROM billing_usage_record record
     WHERE started_at >= %(start)s AND started_at < %(end)s AND status <> 'started'
    UNION ALL
    {_ADJUSTMENT} FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE started_at >= %(start)s AND started_at < %(end)s
)
"""
_ORIGIN = "TIMESTAMPTZ '1970-01-01 00:00:00+00'"
_GRAINS = f"(VALUES {', '.join(f'({grain})' for grain in GRAINS_S)}) grains (grain_s)"
# The finest bucket that a fact counts in: coarser ones are sums of these, and there are fewer of them than facts.
_FINEST_S = f"CASE WHEN started_at >= %(minutes_since)s THEN {MINUTE_S} ELSE {HOUR_S} END"
_FINEST = f"{_FINEST_S} AS finest_s, date_bin(make_interval(secs => {_FINEST_S}), started_at, {_ORIGIN}) AS at"
_BUCKET = f"date_bin(make_interval(secs => grain_s), at, {_ORIGIN})"


def _added(names: Sequence[str]) -> str:
    return ", ".join(f"SUM({name})::bigint AS {name}" for name in names)


def _hours_and_days(name: str, keys: tuple[str, ...]) -> str:
    """The facts by hour, and their days, as `{name}_rows`. `keys` begin with organization, grain and start."""
    columns = ", ".join(keys[3:])
    places = ", ".join(str(place) for place in range(1, len(keys) + 1))
    return f"""{name}_hours AS (
    SELECT organization_id, {HOUR_S} AS grain_s, date_bin(INTERVAL '{HOUR_S} s', started_at, {_ORIGIN}) AS start,
           {columns}, {_added(_SUMS)}
      FROM facts GROUP BY {", ".join(keys)}
), {name}_rows AS (
    SELECT * FROM {name}_hours
    UNION ALL
    SELECT organization_id, {DAY_S}, date_bin(INTERVAL '{DAY_S} s', start, {_ORIGIN}), {columns}, {_added(_SUMS)}
      FROM {name}_hours GROUP BY {places}"""  # noqa: S608 - constants only


_ROWS = f"""
parts AS (
    SELECT organization_id, {_FINEST}, model, deployment_id, {_added((*_SUMS, "context_token_ms"))},
           COUNT(*) FILTER (WHERE status = 'cancelled' AND requests = 1) AS cancelled,
           {", ".join(f"COUNT(*) FILTER (WHERE failure = '{name}') AS failed_{name}" for name in NAMES)}
      FROM facts CROSS JOIN LATERAL (
        SELECT CASE WHEN status = 'failed' AND requests = 1 THEN {class_sql("error_code")} END AS failure) failed
     GROUP BY 1, 2, 3, 4, 5
), parts_of_all AS (
    SELECT * FROM parts
    UNION ALL
    SELECT {ALL_ORGANIZATIONS}, finest_s, at, model, deployment_id, {_added(_SERVICE_SUMS)}
      FROM parts GROUP BY 2, 3, 4, 5
), counted AS (
    SELECT organization_id, finest_s AS grain_s, at AS start, model, deployment_id, {", ".join(_SERVICE_SUMS)}
      FROM parts_of_all
    UNION ALL
    SELECT organization_id, grain_s, {_BUCKET}, model, deployment_id, {_added(_SERVICE_SUMS)}
      FROM parts_of_all JOIN {_GRAINS} ON grain_s > finest_s GROUP BY 1, 2, 3, 4, 5
), slots AS (
    SELECT organization_id, {_FINEST}, model, deployment_id, slot, COUNT(*) AS hits
      FROM facts CROSS JOIN unnest(slots) slot GROUP BY 1, 2, 3, 4, 5, 6
), slots_of_all AS (
    SELECT * FROM slots
    UNION ALL
    SELECT {ALL_ORGANIZATIONS}, finest_s, at, model, deployment_id, slot, SUM(hits)::bigint
      FROM slots GROUP BY 2, 3, 4, 5, 6
), slotted AS (
    SELECT {", ".join(_SERVICE_KEYS)}, array_agg((slot::bigint << {COUNT_BITS}) | hits ORDER BY slot) AS histogram
      FROM (SELECT organization_id, finest_s AS grain_s, at AS start, model, deployment_id, slot, hits FROM slots_of_all
            UNION ALL
            SELECT organization_id, grain_s, {_BUCKET}, model, deployment_id, slot, SUM(hits)::bigint
              FROM slots_of_all JOIN {_GRAINS} ON grain_s > finest_s GROUP BY 1, 2, 3, 4, 5, 6) bucketed
     GROUP BY {", ".join(_SERVICE_KEYS)}
), service_rows AS (
    SELECT {", ".join(_SERVICE_KEYS)}, {", ".join(_SERVICE_SUMS)}, COALESCE(histogram, '{{}}') AS histogram
      FROM counted LEFT JOIN slotted USING ({", ".join(_SERVICE_KEYS)})
), {_hours_and_days("usage", _USAGE_KEYS)}
), key_rows AS (
    SELECT organization_id, {DAY_S} AS grain_s, date_bin(INTERVAL '{DAY_S} s', started_at, {_ORIGIN}) AS start,
           project_id, api_key_id, {_added(_SUMS)}
      FROM facts GROUP BY {", ".join(_KEY_KEYS)}
), {_hours_and_days("project", _PROJECT_KEYS)}
), {_hours_and_days("user", _USER_KEYS)}
)
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class _Rollup:
    """A table, the rows above that it is made of, and their columns."""

    table: str
    rows: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]
    has_histogram: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        return (*self.sums, "histogram") if self.has_histogram else self.sums

    def insert(self, *, adds: bool) -> str:
        """In the order of the key, so that an organization's rows lie together. `adds` to what is there already."""
        keys, columns = ", ".join(self.keys), ", ".join((*self.keys, *self.values))
        insert = f"INSERT INTO {self.table} AS kept ({columns}) SELECT {columns} FROM {self.rows} ORDER BY {keys}"  # noqa: S608
        if not adds:
            return insert
        added = [f"{name} = kept.{name} + EXCLUDED.{name}" for name in self.sums]
        if self.has_histogram:
            added.append("histogram = billing_merge_histograms(kept.histogram, EXCLUDED.histogram)")
        return f"{insert} ON CONFLICT ({keys}) DO UPDATE SET {', '.join(added)}"


_SERVICE = _Rollup("billing_service_rollup", "service_rows", _SERVICE_KEYS, _SERVICE_SUMS, has_histogram=True)
_PROJECTS = _Rollup("billing_project_rollup", "project_rows", _PROJECT_KEYS, _SUMS)
_USAGE = _Rollup("billing_usage_rollup", "usage_rows", _USAGE_KEYS, _SUMS)
_KEYS = _Rollup("billing_key_rollup", "key_rows", _KEY_KEYS, _SUMS)
_ROLLUPS = (
    _SERVICE,
    _USAGE,
    _PROJECTS,
    _KEYS,
    _Rollup("billing_end_user_rollup", "user_rows", _USER_KEYS, _SUMS),
)
ROLLUP_TABLES = tuple(rollup.table for rollup in _ROLLUPS)


@dataclass(frozen=True, slots=True)
class _Long:
    """Rows of a rollup that are longer than a day. Apart from the others, since a rebuilt day is a part of one: they
    are sums of days, which stay when their records are gone."""

    rollup: _Rollup
    of_days: _Rollup
    # A bucket's keys, of the day's.
    keys: str
    # Which of the table's rows they are.
    grain: str
    # The first and the last moment of the buckets that a range touches.
    bounds: Callable[[datetime, datetime], tuple[datetime, datetime]]

    def rows(self, days: str) -> str:
        """Made from `days`, which has the columns of a rollup."""
        return f"""
        SELECT {self.keys}, {_added(self.rollup.sums)}
          FROM {days} WHERE grain_s = {DAY_S} AND organization_id <> {ALL_ORGANIZATIONS}
         GROUP BY {", ".join(str(number + 1) for number in range(len(self.rollup.keys)))}
        """  # noqa: S608 - constants only

    @property
    def of_table(self) -> str:
        """A range's, from the days that are rolled up."""
        days = f"(SELECT * FROM {self.of_days.table} WHERE start >= %(start)s AND start < %(end)s) days"  # noqa: S608
        return f"{self.rollup.rows} AS ({self.rows(days)})"

    @property
    def kept(self) -> str:
        return f"FROM {self.rollup.table} WHERE {self.grain} AND start >= %(start)s AND start < %(end)s"

    def period(self, period: dict[str, datetime]) -> dict[str, datetime]:
        start, end = self.bounds(period["start"], period["end"])
        return {"start": start, "end": end}


def _of_months(start: datetime, end: datetime) -> tuple[datetime, datetime]:
    [first] = month_starts(start.astimezone(UTC), 0)
    return first, month_starts((end - timedelta.resolution).astimezone(UTC), 1)[-1]


def _grouped_days(of_days: _Rollup, rows: str, grain_s: int) -> _Long:
    start = f"date_bin(INTERVAL '{grain_s} s', start, {_ORIGIN}) AS start"
    changed = {"grain_s": f"{grain_s} AS grain_s", "start": start}
    return _Long(
        _Rollup(of_days.table, rows, of_days.keys, of_days.sums),
        of_days,
        ", ".join(changed.get(key, key) for key in of_days.keys),
        f"grain_s = {grain_s}",
        lambda start, end: (floor(start, grain_s), ceil(end, grain_s)),
    )


_LONG = (
    _Long(
        _Rollup("billing_month_rollup", "month_rows", _MONTH_KEYS, _SUMS),
        _SERVICE,
        "date_trunc('month', start, 'UTC') AS start, organization_id",
        "TRUE",
        _of_months,
    ),
    _grouped_days(_PROJECTS, "project_weeks", WEEK_S),
    _grouped_days(_USAGE, "usage_four_weeks", FOUR_WEEKS_S),
    _grouped_days(_KEYS, "key_four_weeks", FOUR_WEEKS_S),
)
LONG_ROLLUPS = tuple(long.rollup.rows for long in _LONG)
_ALL = (*_ROLLUPS, *(long.rollup for long in _LONG))
# Every rollup at once, since what is pending can be taken only once.
_DRAIN = f"""
WITH {_TAKEN}, {_ROWS}, {", ".join(f"{long.rollup.rows} AS ({long.rows(long.of_days.rows)})" for long in _LONG)},
     {", ".join(f"into_{rollup.rows} AS ({rollup.insert(adds=True)})" for rollup in _ALL)}
SELECT COUNT(*) FROM taken
"""  # noqa: S608 - constants only
# A statement for each rollup, of the parts that it needs.
_FILLS = {rollup.table: f"WITH {_FROM_RECORDS}, {_ROWS} {rollup.insert(adds=False)}" for rollup in _ROLLUPS}
_COUNT = f"WITH {_FROM_RECORDS} SELECT COUNT(*) FROM facts"  # noqa: S608 - constants only
_FORGET_PENDING = """
WITH started AS MATERIALIZED (
    SELECT request_id FROM billing_usage_record WHERE started_at >= %(start)s AND started_at < %(end)s
)
DELETE FROM billing_rollup_pending
 WHERE record_id IN (SELECT request_id FROM started)
    OR adjustment_id IN (SELECT id FROM billing_usage_adjustment JOIN started ON started.request_id = record_id)
"""


def take_pending(*, now: datetime, batch: int = BATCH) -> int:
    """Add everything pending to the rollups, a transaction a batch; returns how many facts. 0 while another does it."""
    taken = 0
    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK_KEY])
            if not cursor.fetchone()[0]:
                return taken
            cursor.execute(_DRAIN, {"limit": batch, "minutes_since": _minutes_since(now)})
            count: int = cursor.fetchone()[0]
        taken += count
        if count < batch:
            return taken


def forget_minutes(*, now: datetime) -> int:
    """Delete the minutes and quarters that no view shows any more."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM billing_service_rollup WHERE grain_s < {HOUR_S} AND start < %s",  # noqa: S608 - a constant
            [_minutes_since(now)],
        )
        deleted: int = cursor.rowcount
        return deleted


def _minutes_since(now: datetime) -> datetime:
    """A whole hour: its rollup is made of minutes, or none of it is."""
    return datetime.fromtimestamp((now - MINUTES_KEPT).timestamp() // HOUR_S * HOUR_S, UTC)


def rebuild_days(start: datetime, end: datetime, *, now: datetime) -> int:
    """Make the rollups of the UTC days in [start, end) again from their records; returns how many facts. A repeat
    changes nothing, and neither does it matter how a range is divided.

    One snapshot for all of it, so a record that ends meanwhile stays pending and is counted once. Raises
    RecordsRetired for days whose records are gone: their rollups are all that is left.
    """
    period = _period(start, end, now)
    if retired := retired_in(period["start"], period["end"]):
        raise RecordsRetired(retired.period, retired.retired_at)
    with _one_snapshot() as cursor:
        cursor.execute(_FORGET_PENDING, period)
        for table, fill in _FILLS.items():
            cursor.execute(
                f"DELETE FROM {table} WHERE grain_s IN {GRAINS_S} AND start >= %(start)s AND start < %(end)s",  # noqa: S608
                period,
            )
            cursor.execute(fill, period)
        for long in _LONG:
            _add_up_days(cursor, long, period)
        cursor.execute(_COUNT, period)
        count: int = cursor.fetchone()[0]
        return count


def fill_days(table: str, start: datetime, end: datetime, *, now: datetime) -> int:
    """Make one of ROLLUP_TABLES for UTC days of which it has nothing, in the caller's transaction and without a look
    at what there is: for loading a new database, whose rollups may then have no indexes yet. Returns how many rows."""
    with connection.cursor() as cursor:
        cursor.execute(_FILLS[table], _period(start, end, now))
        count: int = cursor.rowcount
        return count


def add_up_days(name: str, start: datetime, end: datetime) -> int:
    """Make one of LONG_ROLLUPS as far as it is touched by [start, end), from the rollups of its days: after
    `fill_days`. Returns how many rows."""
    [long] = (long for long in _LONG if long.rollup.rows == name)
    with transaction.atomic(), connection.cursor() as cursor:
        return _add_up_days(cursor, long, {"start": start, "end": end})


def _add_up_days(cursor: Any, long: _Long, period: dict[str, datetime]) -> int:
    touched = long.period(period)
    cursor.execute(f"DELETE {long.kept}", touched)
    cursor.execute(f"WITH {long.of_table} {long.rollup.insert(adds=False)}", touched)
    count: int = cursor.rowcount
    return count


@contextmanager
def _one_snapshot() -> Iterator[Any]:
    """A transaction that sees one moment and changes rollups alone. It cannot stand inside another transaction."""
    with connection.cursor() as cursor:
        # Before the transaction: its snapshot must be younger than what the last holder of the lock committed.
        cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK_KEY])
        try:
            with transaction.atomic(durable=True):
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                yield cursor
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK_KEY])


def _period(start: datetime, end: datetime, now: datetime) -> dict[str, datetime]:
    since, until = (
        moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) for moment in (start, end)
    )
    return {"start": since, "end": until, "minutes_since": _minutes_since(now)}


@dataclass(frozen=True)
class Difference:
    """A bucket whose rollup is not what the records say."""

    table: str
    key: tuple[Any, ...]
    kept: tuple[Any, ...] | None
    expected: tuple[Any, ...] | None


def compare_day(day: datetime, *, now: datetime, limit: int = 20) -> list[Difference]:
    """What the rollups of one UTC day have otherwise than its records; pending facts are taken first."""
    take_pending(now=now)
    period = _period(day, day + timedelta(days=1), now)
    with _one_snapshot() as cursor:
        found = [row for rollup in _ROLLUPS for row in _differences(cursor, rollup, period, limit)]
        return [*found, *(row for long in _LONG for row in _differences_of_days(cursor, long, period, limit))]


def _differences(cursor: Any, rollup: _Rollup, period: dict[str, datetime], limit: int) -> Iterator[Difference]:
    pending = "SELECT record_id FROM billing_rollup_pending WHERE record_id IS NOT NULL"
    facts = _FROM_RECORDS.replace("status <> 'started'", f"status <> 'started' AND request_id NOT IN ({pending})")
    kept = (
        f"SELECT * FROM {rollup.table} WHERE grain_s IN {GRAINS_S} AND start >= %(start)s AND start < %(end)s"  # noqa: S608
        f" AND (grain_s >= {HOUR_S} OR start >= %(minutes_since)s)"
    )
    expected = f"SELECT * FROM {rollup.rows} WHERE grain_s >= {HOUR_S} OR start >= %(minutes_since)s"  # noqa: S608
    return _unequal(cursor, rollup, f"{facts}, {_ROWS}", kept, expected, {**period, "limit": limit})


def _differences_of_days(cursor: Any, long: _Long, period: dict[str, datetime], limit: int) -> Iterator[Difference]:
    kept, expected = f"SELECT * {long.kept}", f"SELECT * FROM {long.rollup.rows}"  # noqa: S608 - constants only
    return _unequal(cursor, long.rollup, long.of_table, kept, expected, {**long.period(period), "limit": limit})


def _unequal(
    cursor: Any, rollup: _Rollup, sources: str, kept: str, expected: str, parameters: dict[str, Any]
) -> Iterator[Difference]:
    keys, values = rollup.keys, rollup.values
    cursor.execute(
        f"""
        WITH {sources}
        SELECT {", ".join(f"COALESCE(kept.{key}, expected.{key})" for key in keys)},
               kept.organization_id IS NOT NULL, expected.organization_id IS NOT NULL,
               {", ".join(f"kept.{value}, expected.{value}" for value in values)}
          FROM ({kept}) kept FULL JOIN ({expected}) expected USING ({", ".join(keys)})
         WHERE ({", ".join(f"kept.{value}" for value in values)})
               IS DISTINCT FROM ({", ".join(f"expected.{value}" for value in values)})
         ORDER BY 1, 2 LIMIT %(limit)s
        """,  # noqa: S608 - constants only
        parameters,
    )
    for row in cursor.fetchall():
        key, flags, pairs = row[: len(keys)], row[len(keys) : len(keys) + 2], row[len(keys) + 2 :]
        yield Difference(
            rollup.table, key, tuple(pairs[::2]) if flags[0] else None, tuple(pairs[1::2]) if flags[1] else None
        )

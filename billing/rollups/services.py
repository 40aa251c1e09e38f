"""Keeps the rollups: takes what is pending, makes any range again from the records, forgets old minutes.

Only one of these runs at a time (an advisory lock); readers and gateways wait for none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from billing.errors import RecordsRetired
from billing.rollups.failures import NAMES, class_sql
from billing.rollups.histograms import COUNT_BITS, Latency, slot_sql
from billing.rollups.models import ALL_ORGANIZATIONS, DAY_S, GRAINS_S, HOUR_S, NONE, QUARTER_S
from billing.usage.partitions import retired_in

# A view of 24 hours, and a day to spare.
MINUTES_KEPT = timedelta(hours=48)
BATCH = 5_000
_LOCK_KEY = 0x726F6C6C  # "roll"

_SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_nano")
_SERVICE_SUMS = (*_SUMS, "context_token_ms", "cancelled", *(f"failed_{name}" for name in NAMES))
_SERVICE_KEYS = ("organization_id", "grain_s", "start", "model", "deployment_id")
_USAGE_KEYS = ("organization_id", "grain_s", "start", "project_id", "api_key_id", "model", "protocol", "status")

_USER_KEYS = ("organization_id", "grain_s", "start", "end_user")
_KEY_KEYS = ("organization_id", "grain_s", "start", "project_id", "api_key_id")

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
), facts AS MATERIALIZED (
    {_RECORD} FROM taken JOIN billing_usage_record record ON record.request_id = taken.record_id
    UNION ALL
    {_ADJUSTMENT} FROM taken JOIN billing_usage_adjustment adjustment ON adjustment.id = taken.adjustment_id
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
)
"""  # noqa: S608 - constants only
# Everything that started in a range, whether pending or not.
_FROM_RECORDS = f"""
facts AS MATERIALIZED (
    {_RECORD} FROM billing_usage_record record
     WHERE started_at >= %(start)s AND started_at < %(end)s AND status <> 'started'
    UNION ALL
    {_ADJUSTMENT} FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE started_at >= %(start)s AND started_at < %(end)s
)
"""
_BUCKET = "date_bin(make_interval(secs => grain_s), started_at, TIMESTAMPTZ '2000-01-01 00:00:00+00')"
# A fact counts for its organization and for all together, once for each grain.
_SPREAD = f"""
spread AS (
    SELECT tenant AS organization_id, grain_s, {_BUCKET} AS start, model, deployment_id, requests, prompt_tokens,
           cached_tokens, completion_tokens, reasoning_tokens, cost_nano, context_token_ms, slots, status,
           CASE WHEN status = 'failed' AND requests = 1 THEN {class_sql("error_code")} END AS failure
      FROM facts CROSS JOIN (VALUES {", ".join(f"({grain})" for grain in GRAINS_S)}) grains (grain_s)
      CROSS JOIN LATERAL (VALUES (organization_id), ({ALL_ORGANIZATIONS})) tenants (tenant)
     WHERE grain_s >= {HOUR_S} OR started_at >= %(minutes_since)s
), counted AS (
    SELECT {", ".join(_SERVICE_KEYS)}, {", ".join(f"SUM({name})::bigint AS {name}" for name in _SUMS)},
           SUM(context_token_ms)::bigint AS context_token_ms,
           COUNT(*) FILTER (WHERE status = 'cancelled' AND requests = 1) AS cancelled,
           {", ".join(f"COUNT(*) FILTER (WHERE failure = '{name}') AS failed_{name}" for name in NAMES)}
      FROM spread GROUP BY {", ".join(_SERVICE_KEYS)}
), slotted AS (
    SELECT {", ".join(_SERVICE_KEYS)},
           array_agg((slot::bigint << {COUNT_BITS}) | hits ORDER BY slot) AS histogram
      FROM (SELECT {", ".join(_SERVICE_KEYS)}, slot, COUNT(*) AS hits
              FROM spread CROSS JOIN unnest(slots) slot GROUP BY {", ".join(_SERVICE_KEYS)}, slot) slots
     GROUP BY {", ".join(_SERVICE_KEYS)}
), service_rows AS (
    SELECT {", ".join(_SERVICE_KEYS)}, {", ".join(_SERVICE_SUMS)}, COALESCE(histogram, '{{}}') AS histogram
      FROM counted LEFT JOIN slotted USING ({", ".join(_SERVICE_KEYS)})
), usage_rows AS (
    SELECT organization_id, grain_s, {_BUCKET} AS start, project_id, api_key_id, model, protocol, status,
           {", ".join(f"SUM({name})::bigint AS {name}" for name in _SUMS)}
      FROM facts CROSS JOIN (VALUES ({HOUR_S}), ({DAY_S})) grains (grain_s)
     GROUP BY {", ".join(_USAGE_KEYS)}
), key_rows AS (
    SELECT organization_id, grain_s, start, project_id, api_key_id,
           {", ".join(f"SUM({name})::bigint AS {name}" for name in _SUMS)}
      FROM usage_rows WHERE grain_s = {DAY_S} GROUP BY {", ".join(_KEY_KEYS)}
), user_rows AS (
    SELECT organization_id, grain_s, {_BUCKET} AS start, end_user,
           {", ".join(f"SUM({name})::bigint AS {name}" for name in _SUMS)}
      FROM facts CROSS JOIN (VALUES ({DAY_S})) grains (grain_s) GROUP BY {", ".join(_USER_KEYS)}
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
            return f"{insert} RETURNING 1"
        added = [f"{name} = kept.{name} + EXCLUDED.{name}" for name in self.sums]
        if self.has_histogram:
            added.append("histogram = billing_merge_histograms(kept.histogram, EXCLUDED.histogram)")
        return f"{insert} ON CONFLICT ({keys}) DO UPDATE SET {', '.join(added)} RETURNING 1"


_ROLLUPS = (
    _Rollup("billing_service_rollup", "service_rows", _SERVICE_KEYS, _SERVICE_SUMS, has_histogram=True),
    _Rollup("billing_usage_rollup", "usage_rows", _USAGE_KEYS, _SUMS),
    _Rollup("billing_key_rollup", "key_rows", _KEY_KEYS, _SUMS),
    _Rollup("billing_end_user_rollup", "user_rows", _USER_KEYS, _SUMS),
)
ROLLUP_TABLES = tuple(rollup.table for rollup in _ROLLUPS)


def _written(facts: str, *, adds: bool, counted: str = "facts") -> str:
    """Writes the facts to every rollup; returns how many rows of `counted`."""
    inserts = ", ".join(f"into_{rollup.rows} AS ({rollup.insert(adds=adds)})" for rollup in _ROLLUPS)
    return f"WITH {facts}, {_SPREAD}, {inserts} SELECT COUNT(*) FROM {counted}"  # noqa: S608 - constants only


_DRAIN = _written(_TAKEN, adds=True, counted="taken")
_REBUILD = _written(_FROM_RECORDS, adds=True)
_FILL = _written(_FROM_RECORDS, adds=False)
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
            cursor.execute(_DRAIN, {"limit": batch, "minutes_since": _floor_quarter(now - MINUTES_KEPT)})
            count: int = cursor.fetchone()[0]
        taken += count
        if count < batch:
            return taken


def forget_minutes(*, now: datetime) -> int:
    """Delete the minutes and quarters that no view shows any more."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM billing_service_rollup WHERE grain_s < {HOUR_S} AND start < %s",  # noqa: S608 - a constant
            [_floor_quarter(now - MINUTES_KEPT)],
        )
        deleted: int = cursor.rowcount
        return deleted


def _floor_quarter(moment: datetime) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // QUARTER_S * QUARTER_S, UTC)


def rebuild_day(day: datetime, *, now: datetime) -> int:
    """Make the rollups of one UTC day again from its records; returns how many facts. A repeat changes nothing.

    One snapshot for all of it, so a record that ends meanwhile stays pending and is counted once. Raises
    RecordsRetired for a day whose records are gone: its rollups are all that is left.
    """
    period = _period(day, now)
    if retired := retired_in(period["start"], period["end"]):
        raise RecordsRetired(retired.period, retired.retired_at)
    with _one_snapshot() as cursor:
        cursor.execute(_FORGET_PENDING, period)
        for rollup in _ROLLUPS:
            cursor.execute(
                f"DELETE FROM {rollup.table} WHERE grain_s IN {GRAINS_S} AND start >= %(start)s AND start < %(end)s",  # noqa: S608
                period,
            )
        cursor.execute(_REBUILD, period)
        count: int = cursor.fetchone()[0]
        return count


def fill_day(day: datetime, *, now: datetime) -> int:
    """Make the rollups of one UTC day that has none, in the caller's transaction and without a look at what there is:
    for loading a new database, whose rollups may then have no indexes yet. Returns how many facts."""
    with connection.cursor() as cursor:
        cursor.execute(_FILL, _period(day, now))
        count: int = cursor.fetchone()[0]
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


def _period(day: datetime, now: datetime) -> dict[str, datetime]:
    start = day.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    # Whole quarters: one of which a part is kept would differ from its records.
    return {"start": start, "end": start + timedelta(days=1), "minutes_since": _floor_quarter(now - MINUTES_KEPT)}


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
    with _one_snapshot() as cursor:
        return [row for rollup in _ROLLUPS for row in _differences(cursor, rollup, _period(day, now), limit)]


def _differences(cursor: Any, rollup: _Rollup, period: dict[str, datetime], limit: int) -> Iterator[Difference]:
    keys, values = rollup.keys, rollup.values
    pending = "SELECT record_id FROM billing_rollup_pending WHERE record_id IS NOT NULL"
    facts = _FROM_RECORDS.replace("status <> 'started'", f"status <> 'started' AND request_id NOT IN ({pending})")
    cursor.execute(
        f"""
        WITH {facts}, {_SPREAD}
        SELECT {", ".join(f"COALESCE(kept.{key}, expected.{key})" for key in keys)},
               kept.organization_id IS NOT NULL, expected.organization_id IS NOT NULL,
               {", ".join(f"kept.{value}, expected.{value}" for value in values)}
          FROM (SELECT * FROM {rollup.table} WHERE grain_s IN {GRAINS_S} AND start >= %(start)s AND start < %(end)s
                   AND (grain_s >= {HOUR_S} OR start >= %(minutes_since)s)) kept
          FULL JOIN (SELECT * FROM {rollup.rows} WHERE grain_s >= {HOUR_S} OR start >= %(minutes_since)s) expected
               USING ({", ".join(keys)})
         WHERE ({", ".join(f"kept.{value}" for value in values)})
               IS DISTINCT FROM ({", ".join(f"expected.{value}" for value in values)})
         ORDER BY 1, 2, 3 LIMIT %(limit)s
        """,  # noqa: S608 - constants only
        {**period, "limit": limit},
    )
    for row in cursor.fetchall():
        key, flags, pairs = row[: len(keys)], row[len(keys) : len(keys) + 2], row[len(keys) + 2 :]
        yield Difference(
            rollup.table, key, tuple(pairs[::2]) if flags[0] else None, tuple(pairs[1::2]) if flags[1] else None
        )

"""Percentiles of an organization's latencies over time: of models from histograms, of all else from the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from django.db import connection

from billing.rollups.histograms import COUNT_BITS, Latency, percentile_ms, split
from billing.rollups.models import DAY_S, HOUR_S
from billing.rollups.selectors import EVERYTHING, Only

Step = Literal["hour", "day", "month", "total"]
Group = Literal["total", "model", "project", "api_key", "end_user"]
MEASURED = (Latency.TTFT, Latency.E2E)
PERCENTS = (50, 95)
NOTHING = (None,) * len(PERCENTS)
# Percentiles from records are those of the newest completed ones of a period, at most so many.
RECORDS_READ = 50_000
# Rollups by day, whose days are UTC's, serve what begins with one of these and has no steps, and where one border in so
# many days is off by some hours.
LONG = timedelta(days=100)

# By latency and then by step: a value for each of PERCENTS, in milliseconds; None where nothing was measured.
Percentiles = dict[Latency, dict[str, tuple[float | None, ...]]]


@dataclass(frozen=True)
class Measured:
    """By group. `since` is the start of the oldest call that was looked at, where the period has more completed calls
    than are read one by one; None: all of the period."""

    groups: dict[str, Percentiles]
    since: datetime | None = None


# An empty form makes a null.
_FORMS = {"hour": 'YYYY-MM-DD"T"HH24:00', "day": "YYYY-MM-DD", "month": "YYYY-MM", "total": ""}
_COLUMNS: dict[Group, str] = {
    "total": "''",
    "model": "model",
    "project": "project_id",
    "api_key": "api_key_id",
    "end_user": "end_user",
}
_KEY = "array_position(%(keys)s::text[], COALESCE({column}::text, ''))"
_SLOTS = f"""
SELECT COALESCE(to_char(start AT TIME ZONE %(zone)s, %(form)s), ''), {{key}}, packed >> {COUNT_BITS},
       SUM(packed & ((1::bigint << {COUNT_BITS}) - 1))::bigint
  FROM billing_service_rollup rollup CROSS JOIN unnest(histogram) packed
 WHERE organization_id = %(organization_id)s AND grain_s = %(grain_s)s
   AND start >= %(floor)s AND start < %(end)s {{only}}
 GROUP BY 1, 2, 3
"""  # noqa: S608 - constants only
_RECORDS = """
WITH newest AS (
    SELECT COALESCE(to_char(started_at AT TIME ZONE %(zone)s, %(form)s), '') AS step, {key} AS place,
           CASE WHEN is_stream THEN ttft_ms END AS ttft_ms, duration_ms, started_at
      FROM billing_usage_record record
     WHERE organization_id = %(organization_id)s AND started_at >= %(start)s AND started_at < %(end)s
       AND status = 'completed' {only}
     ORDER BY started_at DESC LIMIT %(limit)s
)
SELECT (SELECT MIN(started_at) FROM newest HAVING COUNT(*) = %(limit)s),
       step, place, percentile_cont(%(shares)s::float8[]) WITHIN GROUP (ORDER BY ttft_ms),
       percentile_cont(%(shares)s::float8[]) WITHIN GROUP (ORDER BY duration_ms)
  FROM newest GROUP BY step, place
"""


def over_time(
    organization_id: int,
    start: datetime,
    end: datetime,
    step: Step,
    *,
    group_by: Group = "total",
    keys: Sequence[str] = ("",),
    time_zone: str = "UTC",
    only: Only = EVERYTHING,
) -> Measured:
    """TTFT and E2E of completed calls, for each of the groups `keys`; `total` steps have the key "". One query.

    Of models, and of all together, from hourly rollups (daily ones for more than 100 days), some seconds behind and
    exact to a histogram's bucket. Of a project, key or end user exactly, from the newest RECORDS_READ records of what
    it is narrowed to by `only`: `since` says where those begin.
    """
    parameters: dict[str, Any] = {
        "organization_id": organization_id,
        "start": start,
        "end": end,
        "zone": time_zone,
        "form": _FORMS[step],
        "keys": list(keys),
        **only.parameters,
    }
    key = _KEY.format(column=_COLUMNS[group_by])
    is_rolled = group_by in ("total", "model") and only.is_of_models
    return (_from_rollups if is_rolled else _from_records)(key, keys, only, parameters)


def _from_rollups(key: str, keys: Sequence[str], only: Only, parameters: dict[str, Any]) -> Measured:
    start, end = parameters["start"], parameters["end"]
    is_of_whole_days = parameters["form"] == _FORMS["total"] and start.timestamp() % DAY_S == 0
    grain_s = DAY_S if is_of_whole_days or end - start > LONG else HOUR_S
    floor = datetime.fromtimestamp(start.timestamp() // grain_s * grain_s, UTC)
    with connection.cursor() as cursor:
        cursor.execute(
            _SLOTS.format(key=key, only=only.where("rollup")), {**parameters, "grain_s": grain_s, "floor": floor}
        )
        slots: dict[tuple[int | None, str], dict[int, int]] = {}
        for step, place, slot, count in cursor.fetchall():
            slots.setdefault((place, step), {})[slot] = count
    found = _empty(keys)
    for (place, step), counts in slots.items():
        if place is not None:
            kinds = split(counts)
            for kind, steps in found[keys[place - 1]].items():
                steps[step] = tuple(percentile_ms(kinds[kind], percent) for percent in PERCENTS)
    return Measured(found)


def _from_records(key: str, keys: Sequence[str], only: Only, parameters: dict[str, Any]) -> Measured:
    shares = [percent / 100 for percent in PERCENTS]
    with connection.cursor() as cursor:
        cursor.execute(
            _RECORDS.format(key=key, only=only.where("record")),
            {**parameters, "shares": shares, "limit": RECORDS_READ},
        )
        rows = cursor.fetchall()
    found = _empty(keys)
    for _, step, place, *measured in rows:
        if place is not None:
            for (_, steps), values in zip(found[keys[place - 1]].items(), measured, strict=True):
                steps[step] = tuple(values or NOTHING)
    return Measured(found, rows[0][0] if rows else None)


def _empty(keys: Sequence[str]) -> dict[str, Percentiles]:
    return {key: {kind: {} for kind in MEASURED} for key in keys}

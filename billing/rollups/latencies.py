"""Percentiles of an organization's latencies over time: of models from histograms, of all else from the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

from django.db import connection

from billing.rollups import divisions
from billing.rollups.divisions import EVERYTHING, Only
from billing.rollups.histograms import COUNT_BITS, KIND_BITS, Latency, percentile_ms, split
from billing.rollups.models import DAY_S, HOUR_S
from billing.rollups.ranges import Part, array, ceil, cover, floor, steps

Step = Literal["hour", "day", "month", "total"]
Group = Literal["total", "model", "project", "api_key", "end_user"]
MEASURED = (Latency.TTFT, Latency.E2E)
PERCENTS = (50, 95)
NOTHING = (None,) * len(PERCENTS)
# Percentiles from records are those of the newest completed ones of a period, at most so many: each is a look at a row
# somewhere else, and of so many the 95th percentile is that of some call between the 94.7th and the 95.3rd.
RECORDS_READ = 20_000
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
# What rollups know.
_COLUMNS: dict[Group, str] = {"total": "''", "model": "model"}
_KEY = "array_position(%(keys)s::text[], {column})"
# What is counted of each part, and then of each step that the part is added to or taken from. OFFSET 0: each part is
# looked up by itself. No bucket holds as many calls as an int.
_SLOTS = f"""
WITH parts AS (
    SELECT * FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[], %(grains_s)s::int[])
        WITH ORDINALITY part (since, until, grain_s, part)
), counted AS MATERIALIZED (
    SELECT part, {{key}} AS place, packed >> {COUNT_BITS} AS slot,
           SUM((packed & ((1::bigint << {COUNT_BITS}) - 1))::int) AS hits
      FROM parts CROSS JOIN LATERAL (
        SELECT model, histogram FROM billing_service_rollup rollup
         WHERE organization_id = %(organization_id)s
           AND (grain_s, start) >= (parts.grain_s, parts.since) AND (grain_s, start) < (parts.grain_s, parts.until)
           {{only}} OFFSET 0) found CROSS JOIN unnest(histogram) packed
     WHERE packed >> {COUNT_BITS + KIND_BITS} = ANY(%(kinds)s)
     GROUP BY 1, 2, 3
)
SELECT step, place, slot, SUM(sign * hits)::bigint
  FROM unnest(%(steps)s::text[], %(parts)s::bigint[], %(signs)s::int[]) uses (step, part, sign)
  JOIN counted USING (part)
 GROUP BY 1, 2, 3 HAVING SUM(sign * hits) <> 0
"""  # noqa: S608 - constants only
# Calls of one key have an index; what else is not asked for has no place. One look at each: the oldest and the count of
# all are those of the groups, together.
_RECORDS = """
SELECT MIN(started_at), COUNT(*), COALESCE(to_char(step, %(form)s), ''), place, {measured}
  FROM (
    SELECT started_at, date_trunc(%(unit)s, started_at AT TIME ZONE %(zone)s) AS step,
           CASE WHEN TRUE {only} THEN array_position(%(keys)s::{type}[], {of_record}) END AS place,
           CASE WHEN is_stream THEN ttft_ms END AS ttft_ms, duration_ms
      FROM billing_usage_record record
     WHERE organization_id = %(organization_id)s AND started_at >= %(start)s AND started_at < %(end)s
       AND status = 'completed' {of_key}
     ORDER BY started_at DESC LIMIT %(limit)s) newest
 GROUP BY step, place
"""
_MEASURED = "percentile_cont(%(shares)s::float8[]) WITHIN GROUP (ORDER BY {column}) FILTER (WHERE place IS NOT NULL)"
_RECORD_COLUMNS = {Latency.TTFT: "ttft_ms", Latency.E2E: "duration_ms"}


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
    kinds: Sequence[Latency] = MEASURED,
) -> Measured:
    """TTFT and E2E of completed calls, or one of them, of each of the groups `keys`; `total` steps have the key "".
    One query.

    Of models, and of all together, from rollups, some seconds behind, exact to a histogram's bucket and to the hour in
    which a step begins. Of a project, key or end user exactly, from those among the newest RECORDS_READ records of the
    organization, or of the key that `only` names: `since` says where these begin.
    """
    parameters: dict[str, Any] = {"organization_id": organization_id, **only.parameters}
    if group_by in ("total", "model") and only.is_of_models:
        parts = _parts(start, end, step, ZoneInfo(time_zone))
        key = _KEY.format(column=_COLUMNS[group_by])
        return _from_rollups(key, keys, only, kinds, parameters | parts.parameters)
    parameters |= {"start": start, "end": end, "zone": time_zone, "form": _FORMS[step]}
    parameters |= {"unit": None if step == "total" else step}
    return _from_records(divisions.group_of(group_by, only), keys, only, kinds, parameters)


@dataclass
class _Parts:
    """Ranges of rollups, and the steps that they are added to or taken from."""

    ranges: dict[tuple[datetime, datetime, int], int] = field(default_factory=dict)
    uses: list[tuple[str, int, int]] = field(default_factory=list)

    def use(self, step: str, part: Part) -> None:
        number = self.ranges.setdefault(part[:3], len(self.ranges) + 1)
        self.uses.append((step, number, part.sign))

    @property
    def parameters(self) -> dict[str, Any]:
        starts, ends, grains_s = (array(part[place] for part in self.ranges) for place in range(3))
        steps, parts, signs = (array(use[place] for use in self.uses) for place in range(3))
        return {"starts": starts, "ends": ends, "grains_s": grains_s, "steps": steps, "parts": parts, "signs": signs}


def _parts(start: datetime, end: datetime, step: Step, zone: ZoneInfo) -> _Parts:
    """Steps of whole hours; hours at the edge of a day are read once for the two steps that share them."""
    parts = _Parts()
    first, last = floor(start, HOUR_S), ceil(end, HOUR_S)
    for name, since, until in steps(first, last, "" if step == "total" else step, zone):
        for part in cover(ceil(since, HOUR_S), ceil(until, HOUR_S), (DAY_S, HOUR_S)):
            parts.use(name, part)
    return parts


def _from_rollups(
    key: str, keys: Sequence[str], only: Only, kinds: Sequence[Latency], parameters: dict[str, Any]
) -> Measured:
    with connection.cursor() as cursor:
        more: dict[str, Any] = {"keys": list(keys), "kinds": list(kinds)}
        cursor.execute(_SLOTS.format(key=key, only=only.where("rollup")), {**parameters, **more})
        slots: dict[tuple[int | None, str], dict[int, int]] = {}
        for step, place, slot, count in cursor.fetchall():
            slots.setdefault((place, step), {})[slot] = count
    found = _empty(keys, kinds)
    for (place, step), counts in slots.items():
        if place is not None:
            buckets = split(counts)
            for kind, steps in found[keys[place - 1]].items():
                steps[step] = tuple(percentile_ms(buckets[kind], percent) for percent in PERCENTS)
    return Measured(found)


def _from_records(
    group: divisions.Group, keys: Sequence[str], only: Only, kinds: Sequence[Latency], parameters: dict[str, Any]
) -> Measured:
    shares = [percent / 100 for percent in PERCENTS]
    of_key = Only(api_key_id=only.api_key_id)
    measured = ", ".join(_MEASURED.format(column=_RECORD_COLUMNS[kind]) for kind in kinds)
    statement = _RECORDS.format(
        of_record=group.of_record,
        type=group.type,
        of_key=of_key.where("record"),
        only=only.where("record"),
        measured=measured,
    )
    more: dict[str, Any] = {"keys": group.sql_keys(keys), "shares": shares, "limit": RECORDS_READ}
    with connection.cursor() as cursor:
        cursor.execute(statement, {**parameters, **more})
        rows = cursor.fetchall()
    found = _empty(keys, kinds)
    for _, _, step, place, *by_kind in rows:
        if place is not None:
            for (_, steps), values in zip(found[keys[place - 1]].items(), by_kind, strict=True):
                steps[step] = tuple(values or NOTHING)
    is_cut = sum(row[1] for row in rows) == RECORDS_READ
    return Measured(found, min(row[0] for row in rows) if is_cut else None)


def _empty(keys: Sequence[str], kinds: Sequence[Latency]) -> dict[str, Percentiles]:
    return {key: {kind: {} for kind in kinds} for key in keys}

"""Reads of usage sums. Exact at every moment: rollups for whole hours, records for the parts of hours at the edges,
and what is pending on top, all from one statement, so from one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db import connection

from billing.rollups.divisions import EVERYTHING, FIELDS, MANY, Group, Only, group_of, tables_of
from billing.rollups.ranges import LOCAL_KEYS, Split, array, split


@dataclass(frozen=True)
class UsageSum:
    """Sums of one group, corrections included. `key` is the group's text: a model, an id, an ISO day."""

    key: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost_nano: int


_SUMS = ", ".join(f"billing_sum({name})" for name in FIELDS)
_NAMED_SUMS = ", ".join(f"billing_sum({name}) AS {name}" for name in FIELDS)
# A partitioned table makes a statement dear to plan, however little is read of it: records are named once for the parts
# of hours, and once for what is pending.
_PARTS = f"""
WITH raw AS (
    SELECT * FROM unnest(%(raw_starts)s::timestamptz[], %(raw_ends)s::timestamptz[]) AS raw (since, until)
), adjusted AS MATERIALIZED (
    SELECT record_id, {", ".join(f"billing_sum({name}) AS {name}" for name in FIELDS[1:])}
      FROM billing_usage_adjustment WHERE organization_id = %(organization_id)s GROUP BY record_id
), parts AS (
    SELECT part.* FROM raw CROSS JOIN LATERAL (
        SELECT {{of_record}} AS key, {{record_fields}}
          FROM billing_usage_record record LEFT JOIN adjusted ON adjusted.record_id = record.request_id
         WHERE record.organization_id = %(organization_id)s AND record.status <> 'started'
           AND record.started_at >= raw.since AND record.started_at < raw.until {{only_record}} OFFSET 0) part
    {{rolled}}
)
"""  # noqa: S608 - constants only
# A group without requests is one of a bucket's part that was taken away.
_GROUPED = "GROUP BY key HAVING billing_sum(requests) <> 0"
_BY_KEY = f"SELECT key, {_SUMS} FROM parts {_GROUPED} ORDER BY key"  # noqa: S608 - constants only
_GROUPS = f"grouped AS MATERIALIZED (SELECT key, {{sums}} FROM parts {_GROUPED})"  # noqa: S608 - constants only
_LARGEST = "ORDER BY cost_nano DESC, requests DESC, key LIMIT %(limit)s"
# The largest by cost, then all of them as one row, and how many there are.
_RANKED = f"""
, {_GROUPS.format(sums=_NAMED_SUMS)}
(SELECT key, {", ".join(FIELDS)}, 1 FROM grouped {_LARGEST})
UNION ALL
SELECT NULL, {_SUMS}, COUNT(*) FROM grouped
"""  # noqa: S608 - constants only
# The largest by cost, with it alone, and how many there are.
_COSTLIEST = f"""
, {_GROUPS.format(sums="billing_sum(cost_nano) AS cost_nano, billing_sum(requests) AS requests")}
SELECT key, cost_nano, (SELECT COUNT(*) FROM grouped) FROM grouped {_LARGEST}
"""  # noqa: S608 - constants only
# A part is read by itself: an organization's rows of all time may be a hundred times as many. Grain and start are
# compared together, as the primary key has them: the index of starts has everybody's rows.
_FROM_ROLLUP = """
    UNION ALL
    SELECT part.*
      FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[], %(grains_s)s::int[], %(signs)s::int[],
                  %(steps)s::text[]) AS rolled (since, until, grain_s, sign, step) {asked} CROSS JOIN LATERAL (
        SELECT {of_rollup} AS key, {rollup_fields} FROM {table} rollup
         WHERE rollup.organization_id = %(organization_id)s
           AND (rollup.grain_s, rollup.start) >= (rolled.grain_s, rolled.since)
           AND (rollup.grain_s, rollup.start) < (rolled.grain_s, rolled.until) {only_rollup}
         {grouped_rollup} OFFSET 0) part
     WHERE rolled.grain_s = ANY(ARRAY[{grains}])
"""
_OF_RECORD = {name: f"record.{name} + COALESCE(adjusted.{name}, 0) AS {name}" for name in FIELDS}
_OF_RECORD["requests"] = "1::bigint AS requests"
_OF_PENDING = {
    name: f"CASE WHEN pending.adjustment_id IS NULL THEN record.{name} ELSE adjustment.{name} END" for name in FIELDS
}
_OF_PENDING["requests"] = "CASE WHEN pending.adjustment_id IS NULL THEN 1 ELSE 0 END::bigint"
_PENDING = """
    UNION ALL
    SELECT {of_record}, {pending_fields}
      FROM billing_rollup_pending pending
      LEFT JOIN billing_usage_adjustment adjustment ON adjustment.id = pending.adjustment_id
      JOIN billing_usage_record record ON record.request_id = COALESCE(pending.record_id, adjustment.record_id)
      JOIN unnest(%(rolled_starts)s::timestamptz[], %(rolled_ends)s::timestamptz[]) AS rolled (since, until)
        ON record.started_at >= rolled.since AND record.started_at < rolled.until
     WHERE pending.organization_id = %(organization_id)s {only_record}
"""


def summary(
    organization_id: int,
    start: datetime,
    end: datetime,
    group_by: str = "total",
    *,
    time_zone: str = "UTC",
    only: Only = EVERYTHING,
) -> list[UsageSum]:
    """Sums over [start, end) by `group_by`, one of total, model, project, api_key (each of
    the three also with the model, such as project_model, whose keys are `id|model`), status, ending (its requests
    alone, faster), protocol, end_user, hour, day, month; days and months are those of `time_zone`. One query; running
    requests are not counted."""
    step = group_by if group_by in LOCAL_KEYS else ""
    group = group_of(group_by, only)
    rows = _read(organization_id, start, end, group, _BY_KEY, only=only, step=step, time_zone=time_zone)
    return [UsageSum(group.text(row[0]), *row[1:]) for row in rows]


@dataclass(frozen=True)
class Ranking:
    """The groups with the highest cost, first; all others together in `rest`, which stands for `rest_count` groups."""

    rows: list[UsageSum]
    rest: UsageSum | None
    rest_count: int


def ranking(
    organization_id: int, start: datetime, end: datetime, group_by: str, *, limit: int, only: Only = EVERYTHING
) -> Ranking:
    """As `summary`, for groups of which there may be very many. One query; of projects, keys and end users three, since
    the others' sums are those of all without the largest ones'."""
    period = (organization_id, start, end)
    group = group_of(group_by, only)
    if group_by in MANY and tables_of(group, only):
        largest = leaders(*period, group_by, limit=limit, only=only)
        found = _read(*period, group, _BY_KEY, only=only, among=(group, largest.keys))
        by_key = {group.text(row[0]): UsageSum(group.text(row[0]), *row[1:]) for row in found}
        rows = [by_key[key] for key in largest.keys]
        if not largest.rest_count:
            return Ranking(rows, None, 0)
        [total] = summary(*period, only=only)
        return Ranking(rows, _without(total, rows), largest.rest_count)
    *ranked, of_all = _read(*period, group, _RANKED, {"limit": limit}, only=only)
    rows = [UsageSum(group.text(row[0]), *row[1:-1]) for row in ranked]
    rest_count = of_all[-1] - len(rows)
    return Ranking(rows, _without(UsageSum("", *of_all[1:-1]), rows) if rest_count else None, rest_count)


class Leaders(NamedTuple):
    """The keys of the groups with the highest cost, first, and how many groups there are besides."""

    keys: list[str]
    rest_count: int


def leaders(
    organization_id: int, start: datetime, end: datetime, group_by: str, *, limit: int, only: Only = EVERYTHING
) -> Leaders:
    """As `ranking`, without sums. One query."""
    found, count = _costliest(organization_id, start, end, group_by, limit, only)
    return Leaders(list(found), count - len(found))


def costs(
    organization_id: int, start: datetime, end: datetime, group_by: str, *, limit: int | None = None
) -> dict[str, int]:
    """What the groups with the highest cost, or all of them, cost in nano-units; the highest first. One query."""
    return _costliest(organization_id, start, end, group_by, limit, EVERYTHING)[0]


def _costliest(
    organization_id: int, start: datetime, end: datetime, group_by: str, limit: int | None, only: Only
) -> tuple[dict[str, int], int]:
    """Costs, the highest first, and how many groups there are."""
    group = group_of(group_by, only)
    fields = ("cost_nano", "requests")
    rows = _read(organization_id, start, end, group, _COSTLIEST, {"limit": limit}, only=only, fields=fields, adds=False)
    return {group.text(key): cost_nano for key, cost_nano, _ in rows}, rows[0][-1] if rows else 0


def over_time(
    organization_id: int,
    start: datetime,
    end: datetime,
    step: str,
    *,
    group_by: str = "total",
    keys: Sequence[str] = ("",),
    time_zone: str = "UTC",
    only: Only = EVERYTHING,
) -> dict[str | None, dict[str, UsageSum]]:
    """Sums of each of the groups `keys` by hour, day or month of `time_zone`; those of all other groups together under
    None. Steps without use are not there. One query; of projects, keys and end users two, since the others' sums are
    those of all without theirs: there may be many, but few are asked for."""
    group = group_of(group_by, only)
    period = (organization_id, start, end, step)
    if not (group_by in MANY and tables_of(group, only)):
        return _by_step(*period, group, keys, time_zone=time_zone, only=only)
    found = _by_step(*period, group, keys, time_zone=time_zone, only=only, among=(group, keys))
    [of_all] = over_time(*period, time_zone=time_zone, only=only).values()
    parts = {at: [steps[at] for steps in found.values() if at in steps] for at in of_all}
    others = {at: _without(sums, parts[at]) for at, sums in of_all.items()}
    rest = {at: sums for at, sums in others.items() if sums.requests}
    return {**found, None: rest} if rest else found


def _without(sums: UsageSum, parts: Sequence[UsageSum]) -> UsageSum:
    left = {name: getattr(sums, name) - sum(getattr(part, name) for part in parts) for name in FIELDS}
    return UsageSum(sums.key, **left)


def _by_step(
    organization_id: int,
    start: datetime,
    end: datetime,
    step: str,
    group: Group,
    keys: Sequence[str],
    *,
    time_zone: str,
    only: Only,
    among: tuple[Group, Sequence[str]] | None = None,
) -> dict[str | None, dict[str, UsageSum]]:
    moment = group_of(step, only)
    of_record, of_rollup = (
        f"{at} || '|' || COALESCE(array_position(%(keys)s::{group.type}[], {key})::text, '')"
        for at, key in ((moment.of_record, group.of_record), (moment.of_rollup, group.of_rollup))
    )
    both = replace(group, of_record=of_record, of_rollup=of_rollup)
    more = {"keys": group.sql_keys(keys)}
    found: dict[str | None, dict[str, UsageSum]] = {key: {} for key in keys}
    for row in _read(
        *(organization_id, start, end, both, _BY_KEY, more),
        only=only,
        step=step,
        time_zone=time_zone,
        among=among,
        rollup_key="rollup.start, " + group.of_rollup,
    ):
        at, _, place = row[0].partition("|")
        key = keys[int(place) - 1] if place else None
        found.setdefault(key, {})[at] = UsageSum(at, *row[1:])
    return found


def _read(
    organization_id: int,
    start: datetime,
    end: datetime,
    group: Group,
    ending: str,
    more: dict[str, Any] | None = None,
    *,
    only: Only,
    step: str = "",
    time_zone: str = "UTC",
    fields: Sequence[str] = FIELDS,
    among: tuple[Group, Sequence[str]] | None = None,
    rollup_key: str = "",
    adds: bool = True,
) -> list[tuple[Any, ...]]:  # rows as the query has them
    """`among`: of some keys of a group alone. `adds`: a rollup's rows are added up part by part, by `rollup_key` (the
    group's own when empty): fewer then have to be told apart by text."""
    keyed, keys = among or (group, ())
    parts = {
        "of_record": group.of_record,
        "of_rollup": group.of_rollup,
        "only_record": only.where("record") + (f" AND {keyed.of_record} = ANY(%(among)s)" if among else ""),
        # Key by key, so that each is looked up by itself.
        "asked": f"CROSS JOIN unnest(%(among)s::{keyed.type}[]) asked (key)" if among else "",
        "only_rollup": only.where("rollup") + (f" AND {keyed.of_rollup} = asked.key" if among else ""),
        "record_fields": ", ".join(_OF_RECORD[name] for name in fields),
        "pending_fields": ", ".join(_OF_PENDING[name] for name in fields),
        "rollup_fields": ", ".join(
            f"rolled.sign * billing_sum({name}) AS {name}" if adds else f"rolled.sign * rollup.{name}"
            for name in fields
        ),
        "grouped_rollup": f"GROUP BY {rollup_key or 1}" if adds else "",
    }
    tables = tables_of(group, only)
    grains_s = [grain_s for of_table in tables.values() for grain_s in of_table]
    ranges = split(start, end, step, ZoneInfo(time_zone), grains_s) if tables else Split([(start, end)], [], [])
    rolled = "".join(
        _FROM_ROLLUP.format(**parts, table=group.rows or table.name, grains=", ".join(map(str, of_table)))
        for table, of_table in tables.items()
    )
    rolled += _PENDING.format(**parts)
    with connection.cursor() as cursor:
        cursor.execute(
            _PARTS.format(**parts, rolled=rolled if ranges.rolled else "") + ending,
            {
                "organization_id": organization_id,
                "zone": time_zone,
                "raw_starts": array(since for since, _ in ranges.raw),
                "raw_ends": array(until for _, until in ranges.raw),
                "rolled_starts": array(since for since, _ in ranges.rolled),
                "rolled_ends": array(until for _, until in ranges.rolled),
                "starts": array(part.since for part in ranges.parts),
                "ends": array(part.until for part in ranges.parts),
                "grains_s": array(part.grain_s for part in ranges.parts),
                "signs": array(part.sign for part in ranges.parts),
                "steps": array(part.step for part in ranges.parts),
                "among": keyed.sql_keys(keys),
                **only.parameters,
                **(more or {}),
            },
        )
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def first_use() -> datetime | None:
    """When the oldest record started. A read of all records: for commands."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT MIN(started_at) FROM billing_usage_record")
        found: datetime | None = cursor.fetchone()[0]
        return found


@dataclass(frozen=True)
class PendingState:
    """How far the rollups are behind."""

    count: int
    oldest_finished_at: datetime | None


def pending() -> PendingState:
    """Reads everything that is pending: seconds' worth, unless nobody takes it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*), (SELECT record.finished_at FROM billing_rollup_pending oldest"
            " JOIN billing_usage_record record ON record.request_id = oldest.record_id ORDER BY oldest.id LIMIT 1)"
            " FROM billing_rollup_pending"
        )
        return PendingState(*cursor.fetchone())

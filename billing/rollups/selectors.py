"""Reads of usage sums. Exact at every moment: rollups for whole hours, records for the parts of hours at the edges,
and what is pending on top, all from one statement, so from one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db import connection

from billing.rollups.failures import NAMES
from billing.rollups.models import DAY_S, HOUR_S, NONE

HOUR = timedelta(hours=1)
# Both know models; only the first knows projects, keys, protocols and how requests ended.
_USAGE, _SERVICE = "billing_usage_rollup", "billing_service_rollup"
# Days of projects and keys, without models and endings.
_KEY_DAYS = "billing_key_rollup"
# Days of end users, without all else.
_END_USER_DAYS = "billing_end_user_rollup"


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


@dataclass(frozen=True, slots=True)
class Only:
    """What sums and latencies are narrowed to; empty means all."""

    model: str = ""
    project_id: int | None = None
    api_key_id: int | None = None
    end_user: str = ""
    statuses: tuple[str, ...] = ()
    # Any of these.
    api_key_ids: tuple[int, ...] = ()

    @property
    def table(self) -> str:
        """The narrowest rollup that knows it all; "" when only records do."""
        if self.end_user:
            return ""
        by_key = self.project_id is not None or self.api_key_id is not None or self.api_key_ids or self.statuses
        return _USAGE if by_key else _SERVICE

    @property
    def is_of_models(self) -> bool:
        """Whether it names a model at most."""
        return self.table == _SERVICE

    def where(self, alias: str) -> str:
        """SQL over a record or a rollup, after the other conditions, for `parameters`."""
        columns = ("model", "project_id", "api_key_id", "end_user")
        chosen = [f"AND {alias}.{name} = %(only_{name})s" for name in columns if getattr(self, name)]
        if self.statuses:
            chosen.append(f"AND {alias}.status = ANY(%(only_statuses)s)")
        if self.api_key_ids:
            chosen.append(f"AND {alias}.api_key_id = ANY(%(only_api_key_ids)s)")
        return " ".join(chosen)

    @property
    def parameters(self) -> dict[str, Any]:
        lists = {"only_statuses": list(self.statuses), "only_api_key_ids": list(self.api_key_ids)}
        return {f"only_{name}": value for name, value in asdict(self).items()} | lists


EVERYTHING = Only()


_FIELDS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_nano")
_FAILED = " + ".join(f"failed_{name}" for name in NAMES)


@dataclass(frozen=True, slots=True)
class _Group:
    """How a group is told from a record, and from a rollup."""

    of_record: str
    of_rollup: str
    table: str = _SERVICE
    # The column that tells the group, where that is cheaper to compare than its text.
    rollup_column: str = ""
    is_of_keys: bool = False


def _moment(form: str) -> _Group:
    of_record, of_rollup = (
        f"to_char({column} AT TIME ZONE %(zone)s, '{form}')" for column in ("record.started_at", "rollup.start")
    )
    return _Group(of_record, of_rollup)


def _id(column: str) -> _Group:
    return _Group(
        f"COALESCE(record.{column}::text, '')",
        f"COALESCE(NULLIF(rollup.{column}, {NONE})::text, '')",
        _USAGE,
        f"rollup.{column}",
        is_of_keys=True,
    )


def _with_model(column: str) -> _Group:
    """The id and the model, as `id|model`."""
    group = _id(column)
    return _Group(f"{group.of_record} || '|' || record.model", f"{group.of_rollup} || '|' || rollup.model", group.table)


# A service rollup's row as one for each ending, with the requests alone.
_ENDINGS = f"""
(SELECT organization_id, grain_s, start, model, ending.status, ending.requests,
        {", ".join(f"0 AS {name}" for name in _FIELDS[1:])}
   FROM billing_service_rollup CROSS JOIN LATERAL (VALUES
     ('completed', requests - cancelled - ({_FAILED})), ('cancelled', cancelled), ('failed', {_FAILED})
   ) ending (status, requests))
"""  # noqa: S608 - constants only
_GROUPS = {
    "total": _Group("''", "''"),
    "model": _Group("record.model", "rollup.model"),
    "project": _id("project_id"),
    "api_key": _id("api_key_id"),
    "total_model": _Group("'|' || record.model", "'|' || rollup.model"),
    "project_model": _with_model("project_id"),
    "api_key_model": _with_model("api_key_id"),
    "status": _Group("record.status", "rollup.status", _USAGE),
    "ending": _Group("record.status", "rollup.status", _ENDINGS),
    "protocol": _Group("record.protocol", "rollup.protocol", _USAGE),
    "end_user": _Group("record.end_user", "rollup.end_user", _END_USER_DAYS),
    "hour": _moment('YYYY-MM-DD"T"HH24:00'),
    "day": _moment("YYYY-MM-DD"),
    "month": _moment("YYYY-MM"),
}
# Python's form of what the same groups are told apart by.
_LOCAL_KEYS = {"hour": "%Y-%m-%d %H", "day": "%Y-%m-%d", "month": "%Y-%m"}
_SUMS = ", ".join(f"SUM({name})::bigint" for name in _FIELDS)
_NAMED_SUMS = ", ".join(f"SUM({name})::bigint AS {name}" for name in _FIELDS)
_PARTS = """
WITH rolled AS (
    SELECT * FROM unnest(%(rolled_starts)s::timestamptz[], %(rolled_ends)s::timestamptz[], %(grains_s)s::int[])
        AS rolled (since, until, grain_s)
), raw AS (
    SELECT * FROM unnest(%(raw_starts)s::timestamptz[], %(raw_ends)s::timestamptz[]) AS raw (since, until)
), parts AS (
    SELECT part.* FROM raw CROSS JOIN LATERAL (
        SELECT {of_record} AS key, {record_fields} FROM billing_usage_record record
         WHERE record.organization_id = %(organization_id)s AND record.status <> 'started'
           AND record.started_at >= raw.since AND record.started_at < raw.until {only_record} OFFSET 0) part
    UNION ALL
    SELECT {of_record}, {adjustment_fields}
      FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
      JOIN raw ON record.started_at >= raw.since AND record.started_at < raw.until
     WHERE adjustment.organization_id = %(organization_id)s {only_record}
    {rolled}
)
"""
_BY_KEY = f"SELECT key, {_SUMS} FROM parts GROUP BY key ORDER BY key"  # noqa: S608 - constants only
# The largest by cost, and all others as one row with a null key.
_RANKED = f"""
, grouped AS (
    SELECT key, {_NAMED_SUMS},
           row_number() OVER (ORDER BY SUM(cost_nano) DESC, SUM(requests) DESC, key) AS rank
      FROM parts GROUP BY key
)
SELECT CASE WHEN rank <= %(limit)s THEN key END, {_SUMS}, COUNT(*) FROM grouped GROUP BY 1 ORDER BY MIN(rank)
"""  # noqa: S608 - constants only
# The largest by cost, with it alone.
_COSTLIEST = """
SELECT key, SUM(cost_nano)::bigint AS cost_nano FROM parts GROUP BY key ORDER BY cost_nano DESC, key LIMIT %(limit)s
"""
# A part is read by itself, and added up at once: an organization's rows of all time may be a hundred times as many.
# Grain and start are compared together, as the primary key has them: the index of starts has everybody's rows.
_FROM_ROLLUP = """
    UNION ALL
    SELECT added.* FROM rolled CROSS JOIN LATERAL (
        SELECT {of_rollup} AS key, {sums} FROM {table} rollup
         WHERE rollup.organization_id = %(organization_id)s
           AND (rollup.grain_s, rollup.start) >= (rolled.grain_s, rolled.since)
           AND (rollup.grain_s, rollup.start) < (rolled.grain_s, rolled.until) {only_rollup}
         GROUP BY {rollup_column}) added
     WHERE rolled.grain_s {grains}
"""
_PENDING = """
    UNION ALL
    SELECT {of_record}, {record_fields}
      FROM billing_rollup_pending pending JOIN billing_usage_record record ON record.request_id = pending.record_id
      JOIN rolled ON record.started_at >= rolled.since AND record.started_at < rolled.until
     WHERE pending.organization_id = %(organization_id)s {only_record}
    UNION ALL
    SELECT {of_record}, {adjustment_fields}
      FROM billing_rollup_pending pending
      JOIN billing_usage_adjustment adjustment ON adjustment.id = pending.adjustment_id
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
      JOIN rolled ON record.started_at >= rolled.since AND record.started_at < rolled.until
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
    step = group_by if group_by in _LOCAL_KEYS else ""
    rows = _read(
        organization_id, start, end, _group(group_by, only), _BY_KEY, only=only, step=step, time_zone=time_zone
    )
    return [UsageSum(*row) for row in rows]


@dataclass(frozen=True)
class Ranking:
    """The groups with the highest cost, first; all others together in `rest`, which stands for `rest_count` groups."""

    rows: list[UsageSum]
    rest: UsageSum | None
    rest_count: int


def ranking(
    organization_id: int, start: datetime, end: datetime, group_by: str, *, limit: int, only: Only = EVERYTHING
) -> Ranking:
    """As `summary`, for groups of which there may be very many. One query."""
    found = _read(organization_id, start, end, _group(group_by, only), _RANKED, {"limit": limit}, only=only)
    rows = [UsageSum(*row[:-1]) for row in found if row[0] is not None]
    rest = next((row for row in found if row[0] is None), None)
    if rest is None:
        return Ranking(rows, None, 0)
    return Ranking(rows, UsageSum("", *rest[1:-1]), rest[-1])


def costs(
    organization_id: int, start: datetime, end: datetime, group_by: str, *, limit: int | None = None
) -> dict[str, int]:
    """What the groups with the highest cost, or all of them, cost in nano-units; the highest first, equal ones by key.
    One query, which takes half of what `ranking` takes."""
    found = _read(
        organization_id,
        start,
        end,
        _group(group_by, EVERYTHING),
        _COSTLIEST,
        {"limit": limit},
        only=EVERYTHING,
        fields=("cost_nano",),
    )
    return dict(found)


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
    None. Steps without use are not there. One query; of API keys two, since the others' sums are those of all without
    theirs: an organization may have many keys, but few are asked for."""
    if group_by == "api_key" and keys and all(keys) and only.is_of_models:
        asked = replace(only, api_key_ids=tuple(map(int, keys)))
        of_keys = over_time(
            organization_id, start, end, step, group_by=group_by, keys=keys, time_zone=time_zone, only=asked
        )
        [of_all] = over_time(organization_id, start, end, step, time_zone=time_zone, only=only).values()
        parts = {at: [steps[at] for steps in of_keys.values() if at in steps] for at in of_all}
        others = {at: _without(sums, parts[at]) for at, sums in of_all.items()}
        rest = {at: sums for at, sums in others.items() if sums.requests}
        return {**of_keys, None: rest} if rest else of_keys
    moment, group = _GROUPS[step], _group(group_by, only)
    of_record = _of_keys(moment.of_record, group.of_record)
    both = _Group(
        of_record,
        _of_keys(moment.of_rollup, group.of_rollup),
        group.table,
        f"rollup.start, {group.rollup_column}" if group.rollup_column else "",
        group.is_of_keys,
    )
    more = {"keys": list(keys)}
    found: dict[str | None, dict[str, UsageSum]] = {key: {} for key in keys}
    for row in _read(organization_id, start, end, both, _BY_KEY, more, only=only, step=step, time_zone=time_zone):
        at, _, place = row[0].partition("|")
        key = keys[int(place) - 1] if place else None
        found.setdefault(key, {})[at] = UsageSum(at, *row[1:])
    return found


def _without(sums: UsageSum, parts: Sequence[UsageSum]) -> UsageSum:
    left = {name: getattr(sums, name) - sum(getattr(part, name) for part in parts) for name in _FIELDS}
    return UsageSum(sums.key, **left)


def _of_keys(moment: str, group: str) -> str:
    """The moment and the group's place among the keys asked for."""
    return f"{moment} || '|' || COALESCE(array_position(%(keys)s::text[], ({group})::text)::text, '')"


def _group(name: str, only: Only) -> _Group:
    if name not in _GROUPS:
        raise ValueError(f"group_by is {name!r}; it must be one of {', '.join(_GROUPS)}.")
    return _GROUPS["status" if name == "ending" and not only.is_of_models else name]


def _read(
    organization_id: int,
    start: datetime,
    end: datetime,
    group: _Group,
    ending: str,
    more: dict[str, Any] | None = None,
    *,
    only: Only,
    step: str = "",
    time_zone: str = "UTC",
    fields: Sequence[str] = _FIELDS,
) -> list[tuple[Any, ...]]:  # rows as the query has them
    parts = {
        "record_fields": ", ".join("1 AS requests" if name == "requests" else f"record.{name}" for name in fields),
        "adjustment_fields": ", ".join("0" if name == "requests" else f"adjustment.{name}" for name in fields),
        "sums": ", ".join(f"SUM({name})::bigint AS {name}" for name in fields),
        "of_record": group.of_record,
        "of_rollup": group.of_rollup,
        "rollup_column": group.rollup_column or "1",
        "only_record": only.where("record"),
        "only_rollup": only.where("rollup"),
    }
    table = _USAGE if _USAGE in (group.table, only.table) else group.table
    if table == _USAGE and group.is_of_keys and not only.model and not only.statuses:
        tables = {_KEY_DAYS: f"= {DAY_S}", _USAGE: f"< {DAY_S}"}
    else:
        tables = {table: "IS NOT NULL"}
    rolled = "".join(_FROM_ROLLUP.format(**parts, table=name, grains=grains) for name, grains in tables.items())
    is_of_users = group.table == _END_USER_DAYS
    is_rolled = only == EVERYTHING if is_of_users else bool(only.table)
    split = _split(start, end, step, ZoneInfo(time_zone)) if is_rolled else Split([(start, end)], [])
    if is_of_users:
        split = split.of_days()
    with connection.cursor() as cursor:
        cursor.execute(
            _PARTS.format(**parts, rolled=rolled + _PENDING.format(**parts) if split.rolled else "") + ending,
            {
                "organization_id": organization_id,
                "zone": time_zone,
                "rolled_starts": [since for since, _, _ in split.rolled],
                "rolled_ends": [until for _, until, _ in split.rolled],
                "grains_s": [grain_s for _, _, grain_s in split.rolled],
                "raw_starts": [since for since, _ in split.raw],
                "raw_ends": [until for _, until in split.raw],
                **only.parameters,
                **(more or {}),
            },
        )
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


class Split(NamedTuple):
    """A range in parts that do not overlap: to be summed from records, and from rollups of a grain."""

    raw: list[tuple[datetime, datetime]]
    rolled: list[tuple[datetime, datetime, int]]

    def of_days(self) -> Split:
        """The same with records instead of hours."""
        hours = [(since, until) for since, until, grain_s in self.rolled if grain_s != DAY_S]
        return Split(self.raw + hours, [part for part in self.rolled if part[2] == DAY_S])


def _split(start: datetime, end: datetime, step: str, zone: ZoneInfo) -> Split:
    first, last = _ceil(start, HOUR_S), _floor(end, HOUR_S)
    if first >= last:
        return Split([(start, end)], [])
    raw = [(start, first), (last, end)]
    if not step:
        return Split(raw, list(_by_days(first, last)))
    rolled = []
    for hour in _divided_hours(first, last, _LOCAL_KEYS[step], zone):
        raw.append((hour, hour + HOUR))
        rolled.append((first, hour, HOUR_S))
        first = hour + HOUR
    rolled.append((first, last, HOUR_S))
    rolled = [part for part in rolled if part[0] < part[1]]
    if step == "month":
        months = [month for since, until, _ in rolled for month in _by_months(since, until, zone)]
        rolled = [part for since, until in months for part in _by_days(since, until)]
    if step == "day":
        rolled = [part for since, until, _ in rolled for part in _by_local_days(since, until, zone)]
    return Split(raw, rolled)


def _by_months(since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
    """Cut at the local months' borders, so that no UTC day of a part belongs to two of them."""
    while since < until:
        local = since.astimezone(zone)
        border = datetime(local.year + local.month // 12, local.month % 12 + 1, 1, tzinfo=zone).astimezone(UTC)
        yield since, min(border, until)
        since = border


def _by_local_days(since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime, int]]:
    """Days where the zone's are UTC's, hours where they are not; neighbours together."""
    first, grain_s = since, 0
    while since < until:
        day = since.astimezone(zone).date() + timedelta(days=1)
        border = min(datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC), until)
        grain_of_day_s = DAY_S if since == _floor(since, DAY_S) and border == since + timedelta(days=1) else HOUR_S
        if grain_s not in (0, grain_of_day_s):
            yield first, since, grain_s
            first = since
        since, grain_s = border, grain_of_day_s
    if grain_s:
        yield first, until, grain_s


def _by_days(first: datetime, last: datetime) -> Iterator[tuple[datetime, datetime, int]]:
    first_day, last_day = _ceil(first, DAY_S), _floor(last, DAY_S)
    if first_day >= last_day:
        yield first, last, HOUR_S
    else:
        yield first_day, last_day, DAY_S
        yield first, first_day, HOUR_S
        yield last_day, last, HOUR_S


def _divided_hours(first: datetime, last: datetime, form: str, zone: ZoneInfo) -> Iterator[datetime]:
    """UTC hours that belong to two local groups: in zones whose offset is no whole number of hours."""
    if zone.key == "UTC":
        return
    hour = first
    while hour < last:
        next_hour = hour + HOUR
        if f"{hour.astimezone(zone):{form}}" != f"{(next_hour - timedelta.resolution).astimezone(zone):{form}}":
            yield hour
        hour = next_hour


def _floor(moment: datetime, grain_s: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // grain_s * grain_s, UTC)


def _ceil(moment: datetime, grain_s: int) -> datetime:
    floor = _floor(moment, grain_s)
    return floor if floor == moment else floor + timedelta(seconds=grain_s)


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

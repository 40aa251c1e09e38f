"""What usage is divided by, what it is narrowed to, and which rollup knows that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from billing.rollups.failures import NAMES
from billing.rollups.models import DAY_S, FOUR_WEEKS_S, HOUR_S, NONE, WEEK_S


@dataclass(frozen=True, slots=True)
class Table:
    """A rollup: what it tells apart, and in which grains, the longest first."""

    name: str
    columns: frozenset[str]
    grains_s: tuple[int, ...] = (DAY_S, HOUR_S)

    def knows(self, columns: frozenset[str]) -> bool:
        return columns <= self.columns


_SERVICE = Table("billing_service_rollup", frozenset({"model"}))
_PROJECTS = Table("billing_project_rollup", frozenset({"project_id"}), (WEEK_S, DAY_S, HOUR_S))
_END_USERS = Table("billing_end_user_rollup", frozenset({"end_user"}))
_USAGE = Table(
    "billing_usage_rollup",
    frozenset({"project_id", "api_key_id", "model", "protocol", "status"}),
    (FOUR_WEEKS_S, DAY_S, HOUR_S),
)
# Keys, without what else is known of their calls. It has no hours.
_KEYS = Table("billing_key_rollup", frozenset({"project_id", "api_key_id"}), (FOUR_WEEKS_S, DAY_S))
# The narrowest first.
_TABLES = (_SERVICE, _PROJECTS, _END_USERS, _USAGE)


@dataclass(frozen=True, slots=True)
class Only:
    """What sums and latencies are narrowed to; empty means all."""

    model: str = ""
    project_id: int | None = None
    api_key_id: int | None = None
    end_user: str = ""
    statuses: tuple[str, ...] = ()

    @property
    def columns(self) -> frozenset[str]:
        """What has to be known of a call."""
        names = ("model", "project_id", "api_key_id", "end_user")
        return frozenset([name for name in names if getattr(self, name)] + ["status"] * bool(self.statuses))

    @property
    def is_of_models(self) -> bool:
        """Whether it names a model at most."""
        return _SERVICE.knows(self.columns)

    def where(self, alias: str) -> str:
        """SQL over a record or a rollup, after the other conditions, for `parameters`."""
        chosen = [f"AND {alias}.{name} = %(only_{name})s" for name in sorted(self.columns - {"status"})]
        if self.statuses:
            chosen.append(f"AND {alias}.status = ANY(%(only_statuses)s)")
        return " ".join(chosen)

    @property
    def parameters(self) -> dict[str, Any]:
        return {f"only_{name}": value for name, value in asdict(self).items()} | {"only_statuses": list(self.statuses)}


EVERYTHING = Only()


FIELDS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_nano")
_FAILED = " + ".join(f"failed_{name}" for name in NAMES)


@dataclass(frozen=True, slots=True)
class Group:
    """How a group is told from a record, and from a rollup."""

    of_record: str
    of_rollup: str
    columns: frozenset[str] = frozenset()
    is_id: bool = False
    # In place of the table's name.
    rows: str = ""

    @property
    def type(self) -> str:
        return "bigint" if self.is_id else "text"

    def sql_keys(self, keys: Sequence[str]) -> list[Any]:
        """Keys as the statement compares them."""
        return [int(key or NONE) for key in keys] if self.is_id else list(keys)

    def text(self, key: Any) -> str:  # a text or an id, as the statement has it
        return (str(key) if key != NONE else "") if self.is_id else key


def _moment(form: str) -> Group:
    of_record, of_bucket = (
        f"to_char({column} AT TIME ZONE %(zone)s, '{form}')" for column in ("record.started_at", "rollup.start")
    )
    return Group(of_record, f"COALESCE(NULLIF(rolled.step, ''), {of_bucket})")


def _column(name: str) -> Group:
    return Group(f"record.{name}", f"rollup.{name}", frozenset({name}))


def _id(column: str) -> Group:
    """Its keys are numbers: there may be very many."""
    return Group(f"COALESCE(record.{column}, {NONE})", f"rollup.{column}", frozenset({column}), is_id=True)


def _with_model(column: str = "") -> Group:
    """The id and the model, as `id|model`."""
    text = f"COALESCE(NULLIF({{alias}}.{column}, {NONE})::text, '')" if column else "''"
    form = f"{text} || '|' || {{alias}}.model"
    return Group(form.format(alias="record"), form.format(alias="rollup"), frozenset({column, "model"} - {""}))


# A service rollup's row as one for each ending, with the requests alone.
_ENDINGS = f"""
(SELECT organization_id, grain_s, start, model, ending.status, ending.requests,
        {", ".join(f"0 AS {name}" for name in FIELDS[1:])}
   FROM billing_service_rollup CROSS JOIN LATERAL (VALUES
     ('completed', requests - cancelled - ({_FAILED})), ('cancelled', cancelled), ('failed', {_FAILED})
   ) ending (status, requests))
"""  # noqa: S608 - constants only
_GROUPS = {
    # With a type, it can be grouped by.
    "total": Group("''::text", "''::text"),
    "model": _column("model"),
    "project": _id("project_id"),
    "api_key": _id("api_key_id"),
    "total_model": _with_model(),
    "project_model": _with_model("project_id"),
    "api_key_model": _with_model("api_key_id"),
    "status": _column("status"),
    "ending": Group("record.status", "rollup.status", rows=_ENDINGS),
    "protocol": _column("protocol"),
    "end_user": _column("end_user"),
    "hour": _moment('YYYY-MM-DD"T"HH24:00'),
    "day": _moment("YYYY-MM-DD"),
    "month": _moment("YYYY-MM"),
}
# Of these there may be very many.
MANY = frozenset({"project", "api_key", "end_user"})


def group_of(name: str, only: Only) -> Group:
    if name not in _GROUPS:
        raise ValueError(f"group_by is {name!r}; it must be one of {', '.join(_GROUPS)}.")
    return _GROUPS["status" if name == "ending" and not only.is_of_models else name]


def tables_of(group: Group, only: Only) -> dict[Table, tuple[int, ...]]:
    """The narrowest rollups that know it all, and the grains to read of each, the longest first; nothing when only
    records know."""
    columns = group.columns | only.columns
    table = next((table for table in _TABLES if table.knows(columns)), None)
    if table is None:
        return {}
    if table == _USAGE and _KEYS.knows(columns):
        return {_KEYS: _KEYS.grains_s, _USAGE: (HOUR_S,)}
    return {table: table.grains_s}

"""Reads for the operations view: how the service went, over time and by group. Behind by what is pending: seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from django.db import connection

from billing.rollups.failures import NAMES
from billing.rollups.histograms import COUNT_BITS, Latency, percentile_ms, split
from billing.rollups.models import ALL_ORGANIZATIONS, DAY_S, HOUR_S, WEEK_S
from billing.rollups.ranges import array, ceil, cover

Group = Literal["model", "deployment", "organization"]


@dataclass(frozen=True, slots=True)
class ServiceFilters:
    """Empty means all."""

    model: str = ""
    deployment_id: int | None = None
    organization_id: int | None = None


@dataclass(slots=True)
class ServiceSums:
    """Of one step of time, or of one group."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_nano: int = 0
    cancelled: int = 0
    # Tokens of context times milliseconds in a KV cache.
    context_token_ms: int = 0
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    latencies: dict[Latency, dict[int, int]] = field(default_factory=lambda: {kind: {} for kind in Latency})

    def percentile_ms(self, kind: Latency, percent: float) -> float | None:
        return percentile_ms(self.latencies[kind], percent)


_FIELDS = (
    *("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano", "cancelled"),
    "context_token_ms",
)
_SUMS = ", ".join(f"SUM({name})::bigint" for name in (*_FIELDS, *(f"failed_{name}" for name in NAMES)))
# A step that no time reaches.
_NO_STEPS = 10**12
_STEP = "extract(epoch FROM start)::bigint / %(step_s)s * %(step_s)s"
_KEYS: dict[Group, str] = {"model": "model", "deployment": "deployment_id", "organization": "organization_id"}
_WHERE = """
 WHERE grain_s = %(grain_s)s AND start >= %(start)s AND start < %(end)s AND {tenant}
   AND (%(model)s = '' OR model = %(model)s)
   AND (%(deployment_id)s::bigint IS NULL OR deployment_id = %(deployment_id)s)
"""


def over_time(
    filters: ServiceFilters, start: datetime, end: datetime, *, grain_s: int, step_s: int
) -> dict[int, ServiceSums]:
    """By the step's start, in seconds since 1970; `start` should be a step's. Steps without a call are not there. Two
    queries."""
    return _read(_STEP, "organization_id = %(organization_id)s", filters, start, end, grain_s, {"step_s": step_s})


def total(filters: ServiceFilters, start: datetime, end: datetime, *, grain_s: int) -> ServiceSums:
    """All of the rollups of this grain that begin in [start, end). Two queries."""
    found = over_time(filters, start, end, grain_s=grain_s, step_s=_NO_STEPS)
    return found.get(0, ServiceSums())


def by_group(
    group: Group, filters: ServiceFilters, start: datetime, end: datetime, *, grain_s: int, limit: int = 12
) -> list[tuple[str, ServiceSums]]:
    """The groups with most output, first. Two queries, and one more for organizations."""
    tenant, more = "organization_id = %(organization_id)s", {}
    if group == "organization" and filters.organization_id is None:
        tenant = "organization_id = ANY(%(organization_ids)s::bigint[])"
        more["organization_ids"] = _busiest(filters, start, end, grain_s, limit)
    found = _read(_KEYS[group], tenant, filters, start, end, grain_s, more)
    ordered = sorted(found.items(), key=lambda item: (-item[1].completion_tokens, -item[1].requests, str(item[0])))
    return [(str(key), sums) for key, sums in ordered[:limit]]


def sold_by_model(currency: str, start: datetime, end: datetime, *, grain_s: int) -> dict[str, tuple[int, int]]:
    """Output tokens and their cost, of the organizations that pay in `currency`: costs of several do not add up."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT model, SUM(completion_tokens)::bigint, SUM(cost_nano)::bigint FROM billing_service_rollup"
            " JOIN billing_account account USING (organization_id)"
            " WHERE grain_s = %s AND start >= %s AND start < %s AND account.currency = %s GROUP BY model",
            [grain_s, start, end, currency],
        )
        return {model: (tokens, cost_nano) for model, tokens, cost_nano in cursor.fetchall()}


# The same of projects, where nothing narrows it: there are far fewer rows, and they have weeks.
_BUSIEST_OF_ALL = """
SELECT organization_id
  FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[], %(grains_s)s::int[], %(signs)s::int[])
       AS part (since, until, grain_s, sign)
  CROSS JOIN LATERAL (
    SELECT organization_id, completion_tokens FROM billing_project_rollup rollup
     WHERE rollup.grain_s = part.grain_s AND start >= since AND start < until OFFSET 0) found
 GROUP BY organization_id ORDER BY billing_sum(sign * completion_tokens) DESC, organization_id LIMIT %(limit)s
"""


def _busiest(filters: ServiceFilters, start: datetime, end: datetime, grain_s: int, limit: int) -> list[int]:
    parameters = {**_parameters(filters, start, end, grain_s), "limit": limit}
    statement = (
        f"SELECT organization_id FROM billing_service_rollup"  # noqa: S608 - constants only
        f" {_WHERE.format(tenant=f'organization_id <> {ALL_ORGANIZATIONS}')}"
        " GROUP BY organization_id ORDER BY SUM(completion_tokens) DESC, organization_id LIMIT %(limit)s"
    )
    if filters == ServiceFilters() and grain_s >= HOUR_S:
        grains_s = [longer for longer in (WEEK_S, DAY_S, HOUR_S) if longer >= grain_s]
        parts = list(cover(ceil(start, grain_s), ceil(end, grain_s), grains_s))
        statement = _BUSIEST_OF_ALL
        starts, ends, part_grains_s, signs, _ = (array(column) for column in zip(*parts, strict=True))
        parameters |= {"starts": starts, "ends": ends, "grains_s": part_grains_s, "signs": signs}
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [row[0] for row in cursor.fetchall()]


def _parameters(filters: ServiceFilters, start: datetime, end: datetime, grain_s: int) -> dict[str, Any]:
    return {
        "organization_id": ALL_ORGANIZATIONS if filters.organization_id is None else filters.organization_id,
        "model": filters.model,
        "deployment_id": filters.deployment_id,
        "start": start,
        "end": end,
        "grain_s": grain_s,
    }


def _read(
    key: str,
    tenant: str,
    filters: ServiceFilters,
    start: datetime,
    end: datetime,
    grain_s: int,
    more: dict[str, Any],
) -> dict[Any, ServiceSums]:  # keys are what the query groups by
    where = _WHERE.format(tenant=tenant)
    parameters = {**_parameters(filters, start, end, grain_s), **more}
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {key}, {_SUMS} FROM billing_service_rollup {where} GROUP BY 1",  # noqa: S608 - constants only
            parameters,
        )
        rows: dict[Any, ServiceSums] = {found[0]: _sums(found[1:]) for found in cursor.fetchall()}
        cursor.execute(
            f"SELECT {key}, packed >> {COUNT_BITS}, SUM(packed & ((1::bigint << {COUNT_BITS}) - 1))::bigint"  # noqa: S608
            f" FROM billing_service_rollup CROSS JOIN unnest(histogram) packed {where} GROUP BY 1, 2",
            parameters,
        )
        slots: dict[Any, dict[int, int]] = {}
        for found, slot, count in cursor.fetchall():
            slots.setdefault(found, {})[slot] = count
    for found, counts in slots.items():
        rows[found].latencies = split(counts)
    return rows


def _sums(values: Sequence[int]) -> ServiceSums:
    sums = ServiceSums(failed=dict(zip(NAMES, values[len(_FIELDS) :], strict=True)))
    for name, value in zip(_FIELDS, values, strict=False):
        setattr(sums, name, value)
    return sums

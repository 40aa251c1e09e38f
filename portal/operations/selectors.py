"""The operations view as plain values: what the page, its JSON address and the WebSocket all show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing.rollups import service
from billing.rollups.histograms import Latency
from billing.rollups.service import Group, ServiceFilters, ServiceSums
from portal.catalog import selectors as catalog
from portal.operations import refusals, thresholds
from portal.operations.gauges import COUNT_BITS, Gauge, percentile
from portal.operations.present import present
from portal.operations.services import floor
from portal.organizations import selectors as organizations

PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Range:
    """How far back, from which rollups, and how far apart the points are."""

    label: str
    span: timedelta
    grain_s: int
    step_s: int
    # Of the samples of deployments, which have no days.
    sample_grain_s: int
    # Of the table by group, which has no time axis: the range begins at a whole one, so that table and charts agree.
    group_grain_s: int


RANGES = {
    "15m": Range("15 min", timedelta(minutes=15), 60, 60, 60, 60),
    "24h": Range("24 h", timedelta(hours=24), 900, 900, 900, 3600),
    "30d": Range("30 d", timedelta(days=30), 86_400, 86_400, 3600, 86_400),
}
DEFAULT_RANGE = "15m"
GROUPS: dict[Group, str | Promise] = {
    "model": _("Model"),
    "deployment": _("Deployment"),
    "organization": _("Organization"),
}


@dataclass(frozen=True, slots=True)
class ViewFilters:
    range: str = DEFAULT_RANGE
    group: Group = "model"
    service: ServiceFilters = field(default_factory=ServiceFilters)


def view(filters: ViewFilters, *, now: datetime) -> dict[str, Any]:
    """Everything on the page, as JSON values; times in seconds since 1970, latencies in seconds."""
    chosen = RANGES[filters.range]
    start = floor(now - chosen.span, chosen.group_grain_s)
    times = list(range(int(start.timestamp()), int(now.timestamp()) + 1, chosen.step_s))
    steps = service.over_time(filters.service, start, now, grain_s=chosen.grain_s, step_s=chosen.step_s)
    gauges = _gauges_over_time(filters.service, start, chosen)
    total = _total(steps.values())
    held = _Held((now - start).total_seconds(), _held_by_all(filters.service, start, now, chosen, total))
    return {
        "range": filters.range,
        "step_s": chosen.step_s,
        "times": times,
        "now": int(now.timestamp()),
        **_latency_series(steps, times),
        "throughput": _throughput(steps, times, chosen.step_s, now),
        "context_held": _context_held(steps, times, chosen.step_s, now),
        "failures": _failures(steps, times),
        "gauges": _gauge_series(gauges, times),
        "refusals": refusals.over_time(filters.service.organization_id, start, chosen.step_s, times),
        "refused": refusals.by_reason(filters.service.organization_id, start),
        "present": present(model=filters.service.model, deployment_id=filters.service.deployment_id, now=now),
        "thresholds": thresholds.as_json(),
        "groups": _groups(filters, chosen, start, now, held),
        "sums": _sums_of(total, held),
    }


def _latency_series(steps: Mapping[int, ServiceSums], times: list[int]) -> dict[str, Any]:
    empty = ServiceSums()
    return {
        kind.name.lower(): {
            f"p{percent}": [_seconds(steps.get(at, empty).percentile_ms(kind, percent)) for at in times]
            for percent in PERCENTS
        }
        for kind in Latency
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 6)


def _throughput(
    steps: Mapping[int, ServiceSums], times: list[int], step_s: int, now: datetime
) -> dict[str, list[float | None]]:
    """Per second; the last step by the part of it that has passed."""
    empty = ServiceSums()

    def rate(read: Callable[[ServiceSums], int]) -> list[float | None]:
        return [round(read(steps.get(at, empty)) / max(1.0, min(step_s, now.timestamp() - at)), 3) for at in times]

    return {
        "output": rate(lambda sums: sums.completion_tokens),
        "input": rate(lambda sums: sums.prompt_tokens - sums.cached_tokens),
        "cached": rate(lambda sums: sums.cached_tokens),
        "requests": rate(lambda sums: sums.requests),
    }


def _context_held(steps: Mapping[int, ServiceSums], times: list[int], step_s: int, now: datetime) -> list[float]:
    """Tokens of context in the KV cache at once, on average: of the calls by their start, once they have ended."""
    empty = ServiceSums()
    elapsed_s = {at: max(1.0, min(step_s, now.timestamp() - at)) for at in times}
    return [round(steps.get(at, empty).context_token_ms / 1000 / elapsed_s[at], 1) for at in times]


@dataclass(frozen=True, slots=True)
class _Held:
    """What shares of held context are of: a span in seconds, and what every organization held in it."""

    span_s: float
    token_ms: int


def _held_by_all(filters: ServiceFilters, start: datetime, now: datetime, chosen: Range, total: ServiceSums) -> int:
    """Of every organization, under the filters of model and deployment alone."""
    if filters.organization_id is None:
        return total.context_token_ms
    everybody = replace(filters, organization_id=None)
    return service.total(everybody, start, now, grain_s=chosen.grain_s).context_token_ms


def _failures(steps: Mapping[int, ServiceSums], times: list[int]) -> dict[str, list[int]]:
    """Counts by class; classes without any are left out."""
    empty = ServiceSums()
    rows = {name: [steps.get(at, empty).failed[name] for at in times] for name in empty.failed}
    rows["cancelled"] = [steps.get(at, empty).cancelled for at in times]
    return {name: counts for name, counts in rows.items() if any(counts)}


# Gauges ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _GaugeSums:
    """Of one step; means of one deployment are added up over deployments."""

    streams: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    slots: dict[int, int] = field(default_factory=dict)


_GAUGES = """
SELECT extract(epoch FROM start)::bigint / %(step_s)s * %(step_s)s AS step, deployment_id,
       SUM(active_streams_sum)::float8 / SUM(samples), SUM(running_sum)::float8 / NULLIF(SUM(answered), 0),
       SUM(waiting_sum)::float8 / NULLIF(SUM(answered), 0), SUM(prompt_tokens)::bigint, SUM(prefix_hit_tokens)::bigint,
       SUM(drafted_tokens)::bigint, SUM(accepted_tokens)::bigint
  FROM portal_deployment_rollup WHERE {where} GROUP BY 1, 2
"""
_GAUGE_SLOTS = f"""
SELECT extract(epoch FROM start)::bigint / %(step_s)s * %(step_s)s AS step, packed >> {COUNT_BITS},
       SUM(packed & ((1::bigint << {COUNT_BITS}) - 1))::bigint
  FROM portal_deployment_rollup CROSS JOIN unnest(histogram) packed WHERE {{where}} GROUP BY 1, 2
"""  # noqa: S608 - constants only
_OF_DEPLOYMENTS = """
grain_s = %(grain_s)s AND start >= %(start)s
AND (%(deployment_ids)s::bigint[] IS NULL OR deployment_id = ANY(%(deployment_ids)s::bigint[]))
"""


def _deployment_ids(filters: ServiceFilters) -> list[int] | None:
    """Which deployments the filters leave; None for all. An organization's calls have no deployments of their own."""
    if filters.deployment_id is not None:
        return [filters.deployment_id]
    if filters.model:
        return [deployment.id for deployment in catalog.deployments(model__name=filters.model)]
    return None


def _gauges_over_time(filters: ServiceFilters, start: datetime, chosen: Range) -> dict[int, _GaugeSums]:
    parameters: dict[str, Any] = {
        "step_s": chosen.step_s,
        "grain_s": chosen.sample_grain_s,
        "start": start,
        "deployment_ids": _deployment_ids(filters),
    }
    steps: dict[int, _GaugeSums] = {}
    with connection.cursor() as cursor:
        cursor.execute(_GAUGES.format(where=_OF_DEPLOYMENTS), parameters)
        for step, _, streams, running, waiting, *counts in cursor.fetchall():
            sums = steps.setdefault(step, _GaugeSums())
            sums.streams += streams
            sums.running += running or 0.0
            sums.waiting += waiting or 0.0
            sums.prompt_tokens += counts[0]
            sums.prefix_hit_tokens += counts[1]
            sums.drafted_tokens += counts[2]
            sums.accepted_tokens += counts[3]
        cursor.execute(_GAUGE_SLOTS.format(where=_OF_DEPLOYMENTS), parameters)
        for step, slot, count in cursor.fetchall():
            steps[step].slots[slot] = count
    return steps


def _gauge_series(steps: Mapping[int, _GaugeSums], times: list[int]) -> dict[str, Any]:
    def each(read: Callable[[_GaugeSums], float | None]) -> list[float | None]:
        values = [read(steps[at]) if at in steps else None for at in times]
        return [None if value is None else round(value, 4) for value in values]

    def kv(percent: float) -> Callable[[_GaugeSums], float | None]:
        return lambda sums: _share(percentile(sums.slots, Gauge.KV_PERCENT, percent), 100)

    return {
        "kv": {f"p{percent}": each(kv(percent)) for percent in PERCENTS},
        "running": each(lambda sums: sums.running),
        "waiting": each(lambda sums: sums.waiting),
        "streams": each(lambda sums: sums.streams),
        "prefix_hit": each(lambda sums: _share(sums.prefix_hit_tokens, sums.prompt_tokens)),
        "acceptance": each(lambda sums: _share(sums.accepted_tokens, sums.drafted_tokens)),
    }


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else min(1.0, part / whole)


# By group -------------------------------------------------------------------------------------------


def _total(rows: Iterable[ServiceSums]) -> ServiceSums:
    total = ServiceSums()
    for row in rows:
        total.requests += row.requests
        total.completion_tokens += row.completion_tokens
        total.prompt_tokens += row.prompt_tokens
        total.cached_tokens += row.cached_tokens
        total.cancelled += row.cancelled
        total.context_token_ms += row.context_token_ms
        for name, count in row.failed.items():
            total.failed[name] += count
        for kind, buckets in row.latencies.items():
            for bucket, count in buckets.items():
                total.latencies[kind][bucket] = total.latencies[kind].get(bucket, 0) + count
    return total


def _sums_of(sums: ServiceSums, held: _Held) -> dict[str, Any]:
    failed = sum(sums.failed.values())
    return {
        "requests": sums.requests,
        "output": sums.completion_tokens,
        "failed": failed,
        "failed_share": _share(failed, sums.requests),
        "failures": {name: count for name, count in sums.failed.items() if count},
        "cached_share": _share(sums.cached_tokens, sums.prompt_tokens),
        "context_held": round(sums.context_token_ms / 1000 / held.span_s, 1),
        "context_share": _share(sums.context_token_ms, held.token_ms),
        **{
            kind.name.lower(): {f"p{percent}": _seconds(sums.percentile_ms(kind, percent)) for percent in PERCENTS}
            for kind in Latency
        },
    }


def _groups(filters: ViewFilters, chosen: Range, start: datetime, now: datetime, held: _Held) -> list[dict[str, Any]]:
    rows = service.by_group(filters.group, filters.service, start, now, grain_s=chosen.group_grain_s)
    about = _about(filters.group, [key for key, _ in rows])
    plain = {"detail": "", "page": "", "only": ""}
    return [{"key": key, "name": key, **plain, **about.get(key, {}), **_sums_of(sums, held)} for key, sums in rows]


def _about(group: Group, keys: list[str]) -> dict[str, dict[str, str]]:
    """By key: its name, its operator page, and what the filter calls it; no more than is known."""
    if group == "model":
        return {
            row.name: {"page": reverse("portal:operator_model", args=[row.id]), "only": row.name}
            for row in catalog.all_models()
        }
    if group == "deployment":
        return {"0": {"name": "none"}} | {
            str(row.id): {
                "name": row.model,
                "detail": row.address,
                "page": reverse("portal:operator_deployment", args=[row.id]),
                "only": str(row.id),
            }
            for row in catalog.deployments()
        }
    found = organizations.organizations_by_id([int(key) for key in keys])
    return {
        str(number): {
            "name": organization.name,
            "page": reverse("portal:operator_organization", args=[organization.slug]),
            "only": organization.slug,
        }
        for number, organization in found.items()
    }

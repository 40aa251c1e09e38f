"""Writes what the operations view shows: samples with their rollups, refusals; and forgets both in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from billing.usage import selectors as usage
from portal.operations.gauges import Gauge, pack, slot_of
from portal.operations.models import DeploymentSample

MINUTE_S, QUARTER_S, HOUR_S = 60, 900, 3600
SAMPLES_KEPT = timedelta(hours=1)
MINUTES_KEPT = timedelta(hours=48)
HOURS_KEPT = timedelta(days=366)
# Past this pause nobody knows what happened between two samples, so nothing is counted as busy.
LONGEST_GAP = timedelta(seconds=90)
_LOCK_KEY = 0x73616D70  # "samp"


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine answered. The token counts are since its start."""

    running: int
    waiting: int
    max_sequences: int
    pages_used: int
    pages_total: int
    three_bit_pages_used: int
    three_bit_pages_total: int
    prompt_tokens: int
    prefix_hit_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int


_COUNTERS = ("prompt_tokens", "prefix_hit_tokens", "completion_tokens", "drafted_tokens", "accepted_tokens")
_ADDED = ("samples", "answered", "active_streams_sum", "running_sum", "waiting_sum", *_COUNTERS, "busy_s")
_ADD_TO_ROLLUP = f"""
INSERT INTO portal_deployment_rollup AS kept (deployment_id, grain_s, start, histogram, {", ".join(_ADDED)})
VALUES (%s, %s, %s, %s::bigint[], {", ".join(["%s"] * len(_ADDED))})
ON CONFLICT (deployment_id, grain_s, start) DO UPDATE SET
    {", ".join(f"{name} = kept.{name} + EXCLUDED.{name}" for name in _ADDED)},
    histogram = billing_merge_histograms(kept.histogram, EXCLUDED.histogram)
"""  # noqa: S608 - constants only


@transaction.atomic
def record_samples(answers: Mapping[int, EngineFigures | None], *, now: datetime) -> bool:
    """Keep one sample of each deployment, and add it to its minute, quarter and hour. None: it gave no figures.

    False, and nothing is kept, while another process does it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK_KEY])
        if not cursor.fetchone()[0]:
            return False
    active = usage.active_by_deployment()
    latest = DeploymentSample.objects.filter(deployment_id__in=answers, taken_at__gte=now - LONGEST_GAP)
    before = {sample.deployment_id: sample for sample in latest.order_by("taken_at")}
    samples = []
    for deployment_id, figures in answers.items():
        calls, streams = active.get(deployment_id, (0, 0))
        values = {name: getattr(figures, name) for name in EngineFigures.__slots__} if figures else {}
        samples.append(
            DeploymentSample(
                deployment_id=deployment_id, taken_at=now, active_calls=calls, active_streams=streams, **values
            )
        )
    DeploymentSample.objects.bulk_create(samples)
    rows = [row for sample in samples for row in _rollup_rows(sample, before.get(sample.deployment_id))]
    with connection.cursor() as cursor:
        cursor.executemany(_ADD_TO_ROLLUP, rows)
    return True


def _rollup_rows(sample: DeploymentSample, before: DeploymentSample | None) -> list[list[Any]]:  # columns of many types
    slots = [slot_of(Gauge.STREAMS, sample.active_streams)]
    added = dict.fromkeys(_ADDED, 0.0) | {"samples": 1, "active_streams_sum": sample.active_streams}
    if sample.running is not None and sample.waiting is not None:
        slots += [slot_of(Gauge.RUNNING, sample.running), slot_of(Gauge.WAITING, sample.waiting)]
        if sample.kv_share is not None:
            slots.append(slot_of(Gauge.KV_PERCENT, 100 * sample.kv_share))
        added |= {"answered": 1, "running_sum": sample.running, "waiting_sum": sample.waiting}
        if before is not None and before.running is not None:
            added |= {name: _increase(getattr(before, name), getattr(sample, name)) for name in _COUNTERS}
            if before.running or sample.running or added["completion_tokens"]:
                added["busy_s"] = (sample.taken_at - before.taken_at).total_seconds()
    figures = [added[name] for name in _ADDED]
    return [
        [sample.deployment_id, grain_s, floor(sample.taken_at, grain_s), pack(slots), *figures]
        for grain_s in (MINUTE_S, QUARTER_S, HOUR_S)
    ]


def _increase(before: int | None, after: int | None) -> int:
    """A count that fell began anew with its engine."""
    if after is None or before is None:
        return 0
    return after - before if after >= before else after


def floor(moment: datetime, grain_s: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // grain_s * grain_s, UTC)


@dataclass(frozen=True, slots=True)
class Refusals:
    """How many calls one gateway refused so far in one minute, for one reason and organization (0: unknown)."""

    minute: datetime
    code: str
    organization_id: int
    count: int


_COUNT_REFUSALS = f"""
INSERT INTO portal_refusal_count AS kept (grain_s, start, code, organization_id, gateway_id, count)
SELECT {MINUTE_S}, start, code, organization_id, %s, count
  FROM unnest(%s::timestamptz[], %s::text[], %s::bigint[], %s::bigint[])
    AS refused (start, code, organization_id, count)
    ON CONFLICT (grain_s, start, code, organization_id, gateway_id)
    DO UPDATE SET count = GREATEST(kept.count, EXCLUDED.count)
"""  # noqa: S608 - constants only


def record_refusals(gateway_id: str, rows: Sequence[Refusals]) -> None:
    """Whole counts, not increases: a repeat changes nothing, and a lost write is healed by the next."""
    if not rows:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            _COUNT_REFUSALS,
            [
                gateway_id,
                [row.minute for row in rows],
                [row.code for row in rows],
                [row.organization_id for row in rows],
                [row.count for row in rows],
            ],
        )


_HOURS_OF_REFUSALS = f"""
WITH old AS (
    DELETE FROM portal_refusal_count WHERE grain_s = {MINUTE_S} AND start < %s
    RETURNING start, code, organization_id, count
)
INSERT INTO portal_refusal_count AS kept (grain_s, start, code, organization_id, gateway_id, count)
SELECT {HOUR_S}, date_trunc('hour', start), code, organization_id, '', SUM(count) FROM old GROUP BY 1, 2, 3, 4, 5
ON CONFLICT (grain_s, start, code, organization_id, gateway_id) DO UPDATE SET count = kept.count + EXCLUDED.count
"""  # noqa: S608 - constants only


@transaction.atomic
def tidy(*, now: datetime) -> None:
    """Turn old minutes of refusals into hours, and forget what no view shows. Safe to repeat and to overlap."""
    with connection.cursor() as cursor:
        # Whole hours, so that an hour's minutes move together.
        cursor.execute(_HOURS_OF_REFUSALS, [floor(now - MINUTES_KEPT, HOUR_S)])
        cursor.execute("DELETE FROM portal_refusal_count WHERE grain_s = %s AND start < %s", [HOUR_S, now - HOURS_KEPT])
        cursor.execute("DELETE FROM portal_deployment_sample WHERE taken_at < %s", [now - SAMPLES_KEPT])
        for grain_s, kept in ((MINUTE_S, MINUTES_KEPT), (QUARTER_S, MINUTES_KEPT), (HOUR_S, HOURS_KEPT)):
            cursor.execute(
                "DELETE FROM portal_deployment_rollup WHERE grain_s = %s AND start < %s", [grain_s, now - kept]
            )

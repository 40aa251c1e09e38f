"""What deployments said of themselves, and refusals."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any

from portal.operations.gauges import COUNT_BITS, Gauge, slot_of
from portal.operations.seeding.copying import copy_rows
from portal.operations.seeding.plan import MODELS, Made, Say, Size
from portal.operations.services import floor

_PER_HOUR = 720  # every five seconds


def make_samples(size: Size, made: Made, say: Say) -> None:
    """Minutes of the last two days and hours of the whole period, for each deployment; refusals of the same."""
    chance = random.Random(size.days)
    deployments = [(which, deployment) for which, ids in enumerate(made.deployment_ids) for deployment in ids]
    fine_days = min(2, size.days)
    quarters = [size.end - timedelta(minutes=15 * number) for number in range(fine_days * 24 * 4)]
    minutes = [size.end - timedelta(minutes=number) for number in range(fine_days * 24 * 60)]
    hours = [size.end - timedelta(hours=number) for number in range(size.days * 24)]
    rows = []
    for grain_s, moments, samples in (
        (60, minutes, _PER_HOUR // 60),
        (900, quarters, _PER_HOUR // 4),
        (3600, hours, _PER_HOUR),
    ):
        for at in moments:
            start = floor(at, grain_s)
            for which, deployment in deployments:
                rows.append(_sampled(deployment, which, grain_s, start, samples, chance))
    names = (
        *("deployment_id", "grain_s", "start", "samples", "answered", "active_streams_sum", "running_sum"),
        *("waiting_sum", "prompt_tokens", "prefix_hit_tokens", "completion_tokens", "drafted_tokens"),
        *("accepted_tokens", "busy_s", "histogram"),
    )
    copy_rows("portal.DeploymentRollup", names, rows)
    codes = ("rate_limit_requests", "rate_limit_tokens", "insufficient_quota", "engine_overloaded", "invalid_api_key")
    copy_rows(
        "portal.RefusalCount",
        ("grain_s", "start", "code", "organization_id", "gateway_id", "count"),
        (
            (
                grain_s,
                floor(at, grain_s),
                code,
                0,
                "",
                chance.randrange(40),
            )
            for grain_s, moments in ((60, minutes), (3600, hours[48:]))
            for at in moments
            for code in codes
        ),
    )
    say(f"{len(rows):,} rollups of samples")


def _sampled(
    deployment: int, which: int, grain_s: int, start: datetime, samples: int, chance: random.Random
) -> tuple[Any, ...]:
    busy = 0.5 + 0.45 * math.sin(2 * math.pi * (start.hour + start.minute / 60) / 24) * chance.uniform(0.8, 1.1)
    running, waiting = 48 * busy, max(0.0, (busy - 0.7) * 30)
    tokens = int(running * grain_s * 1000 / (MODELS[list(MODELS)[which]][1] * 6))
    slots: dict[int, int] = {}
    for gauge, value in (
        (Gauge.KV_PERCENT, 100 * min(1.0, busy)),
        (Gauge.RUNNING, running),
        (Gauge.WAITING, waiting),
        (Gauge.STREAMS, running),
    ):
        for part, count in ((0.9, samples // 2), (1.0, samples - samples // 2 - 1), (1.1, 1)):
            slot = slot_of(gauge, value * part)
            slots[slot] = slots.get(slot, 0) + count
    return (
        *(deployment, grain_s, start, samples, samples, int(running * samples), int(running * samples)),
        *(int(waiting * samples), tokens * 4, int(tokens * 4 * chance.uniform(0.3, 0.5)), tokens),
        *(tokens, int(tokens * chance.uniform(0.68, 0.78)), float(grain_s)),
        [slot << COUNT_BITS | count for slot, count in sorted(slots.items())],
    )

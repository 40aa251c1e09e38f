"""Distributions of sampled gauges, packed as billing's histograms of latencies are: `slot << 32 | count`.

A share has a bucket for each percent, so its percentiles are exact to one; a count has the logarithmic buckets below,
exact up to 2 and to 10 % above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum

SLOTS_PER_KIND = 256
COUNT_BITS = 32
_PER_OCTAVE = 4


class Gauge(IntEnum):
    KV_PERCENT = 0
    RUNNING = 1
    WAITING = 2
    STREAMS = 3


def slot_of(gauge: Gauge, value: float) -> int:
    if gauge is Gauge.KV_PERCENT:
        bucket = min(100, max(0, math.ceil(value)))
    else:
        bucket = 0 if value < 1 else min(SLOTS_PER_KIND - 1, 1 + round(_PER_OCTAVE * math.log2(value)))
    return gauge * SLOTS_PER_KIND + bucket


def value_of(slot: int) -> float:
    gauge, bucket = divmod(slot, SLOTS_PER_KIND)
    if gauge == Gauge.KV_PERCENT:
        return float(bucket)
    return 0.0 if bucket == 0 else 2 ** ((bucket - 1) / _PER_OCTAVE)


def pack(slots: Iterable[int]) -> list[int]:
    """One observation in each of these slots."""
    return [slot << COUNT_BITS | 1 for slot in sorted(slots)]


def percentile(slots: Mapping[int, int], gauge: Gauge, percent: float) -> float | None:
    """The least value that so many percent of the samples did not pass; None without samples."""
    counts = {slot: count for slot, count in slots.items() if slot // SLOTS_PER_KIND == gauge}
    rank = sum(counts.values()) * percent / 100
    below = 0
    for slot in sorted(counts):
        below += counts[slot]
        if below >= rank:
            return value_of(slot)
    return None

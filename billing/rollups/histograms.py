"""Histograms with fixed logarithmic buckets, so that sums over any range keep their percentiles, exact to a bucket.

A bucket's upper bound is 2^(1/4) times the one below it: a percentile is off by at most 19 %, and by half of that in
the mean. A histogram is stored as an array of bigint, each `slot << 32 | count` in ascending order, where a slot is
`kind * 256 + bucket`; empty buckets take no room. Two histograms are added by `billing_merge_histograms` (migration
0004).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

LEAST_MS = 0.125
PER_OCTAVE = 4
BUCKETS = 96
KIND_BITS = 8
SLOTS_PER_KIND = 1 << KIND_BITS
COUNT_BITS = 32


class Latency(IntEnum):
    """What is measured of a request. The first two only of streamed ones: a plain call's first byte is its last."""

    TTFT = 0
    ITL = 1
    E2E = 2


def bounds_ms(bucket: int) -> tuple[float, float]:
    """What the bucket holds: above the first, up to the second. The first bucket begins at zero, the last never ends
    (its bound is 29 minutes)."""
    upper = LEAST_MS * 2 ** (bucket / PER_OCTAVE)
    return (0.0 if bucket == 0 else upper / 2 ** (1 / PER_OCTAVE)), upper


def slot_sql(kind: Latency, milliseconds: str) -> str:
    """The slot of an SQL expression in milliseconds; null when that is null."""
    bucket = f"ceil(ln(greatest({milliseconds}, {LEAST_MS}) / {LEAST_MS}) / ln(2) * {PER_OCTAVE})"
    # greatest() passes over a null.
    return f"CASE WHEN {milliseconds} IS NOT NULL THEN {kind * SLOTS_PER_KIND} + least({bucket}, {BUCKETS - 1}) END"


def split(slots: Mapping[int, int]) -> dict[Latency, dict[int, int]]:
    """Counts by slot as counts by bucket, of each kind."""
    kinds: dict[Latency, dict[int, int]] = {kind: {} for kind in Latency}
    for slot, count in slots.items():
        kinds[Latency(slot // SLOTS_PER_KIND)][slot % SLOTS_PER_KIND] = count
    return kinds


def percentile_ms(buckets: Mapping[int, int], percent: float) -> float | None:
    """The value at that rank, by its place in its bucket; None when nothing was counted."""
    total = sum(buckets.values())
    if not total:
        return None
    rank = total * percent / 100
    below = 0
    for bucket in sorted(buckets):
        count = buckets[bucket]
        if below + count >= rank:
            lower, upper = bounds_ms(bucket)
            return lower + (upper - lower) * max(0.0, rank - below) / count
        below += count
    raise AssertionError("A rank is never above the total.")

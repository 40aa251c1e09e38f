"""Where a figure turns red, on the operations view as in docker/prometheus-alerts.yml."""

from __future__ import annotations

FIRST_TOKEN_P95_S = 5.0
KV_CACHE_SHARE = 0.95
FAILED_SHARE = 0.05
# The queue grows when more wait than run, and at least so many.
QUEUE = 8


def as_json() -> dict[str, float]:
    return {"ttft": FIRST_TOKEN_P95_S, "kv": KV_CACHE_SHARE, "failed_share": FAILED_SHARE, "queue": QUEUE}

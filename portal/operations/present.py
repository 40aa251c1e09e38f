"""How the deployments are now, from their latest samples: in all, and each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from portal.catalog import selectors as catalog
from portal.catalog import status
from portal.operations.models import DeploymentSample, kv_share
from portal.operations.thresholds import QUEUE

# A sample older than this says nothing about now.
FRESH = timedelta(seconds=60)
# Some samples: few enough to follow what happens, and enough to be steady.
RATE_OVER = timedelta(seconds=20)
# Of the KV cache: its pages, in FP8 where it has two stages, and then those in three bits.
PAGES = ("pages_used", "pages_total", "three_bit_pages_used", "three_bit_pages_total")


def present(*, model: str, deployment_id: int | None, now: datetime) -> dict[str, Any]:
    """The newest sample of each deployment, and their sums; `sampled_at` is None when none is fresh.

    An engine that gave no figures then counts as none. A disabled deployment is shown while calls run there.
    """
    filters: dict[str, object] = {"model__name": model} if model else {}
    if deployment_id is not None:
        filters["id"] = deployment_id
    deployments = catalog.deployments(**filters)
    latest: dict[int, list[DeploymentSample]] = {}
    fresh = DeploymentSample.objects.filter(
        taken_at__gte=now - FRESH, deployment_id__in=[row.id for row in deployments]
    )
    for sample in fresh.order_by("-taken_at"):
        latest.setdefault(sample.deployment_id, []).append(sample)
    rows = []
    for deployment in deployments:
        samples = latest.get(deployment.id, [])
        if samples and (deployment.is_enabled or samples[0].active_calls):
            rows.append(_row(deployment, samples))
    silent = [row["id"] for row in rows if row["state"] == "silent"]
    for number, known in status.read(silent).items():
        row = next(row for row in rows if row["id"] == number)
        row |= {"error": known.error, "error_code": known.error_code}
    engines = [row for row in rows if row["state"] != "upstream"]
    counted = ("streams", "calls", "running", "waiting", "capacity", *PAGES)
    sums = {name: sum(row[name] or 0 for row in rows) for name in counted}
    return {
        "sampled_at": max((int(samples[0].taken_at.timestamp()) for samples in latest.values()), default=None),
        **sums,
        "kv": kv_share(*(sums[name] for name in PAGES)),
        "output_per_s": round(sum(row["output_per_s"] or 0.0 for row in rows), 1),
        "enabled": sum(row.is_enabled for row in deployments),
        "engines": len(engines),
        "answering": len(engines) - len(silent),
        "deployments": rows,
    }


def _row(deployment: catalog.DeploymentInfo, samples: Sequence[DeploymentSample]) -> dict[str, Any]:
    """`samples` newest first; the figures of the engine are None where it gave none."""
    newest = samples[0]
    is_answering = newest.running is not None
    waiting, running = newest.waiting or 0, newest.running or 0
    return {
        "id": deployment.id,
        "name": deployment.model,
        "address": deployment.address,
        "page": reverse("portal:operator_deployment", args=[deployment.id]),
        "state": "upstream" if deployment.kind != "engine" else "answers" if is_answering else "silent",
        "error": "",
        "streams": newest.active_streams,
        "calls": newest.active_calls,
        "running": newest.running,
        "waiting": newest.waiting,
        "is_queue_long": waiting > running and waiting > QUEUE,
        "capacity": newest.max_sequences,
        **{name: getattr(newest, name) for name in PAGES},
        "kv": newest.kv_share,
        "output_per_s": _rate(samples) if is_answering else None,
    }


def _rate(samples: Sequence[DeploymentSample]) -> float:
    """Output tokens per second over the last samples (newest first, the first with figures)."""
    newest = samples[0]
    row = [each for each in samples if newest.taken_at - each.taken_at <= RATE_OVER]
    # Before a gap or a restart, counts tell of another engine.
    oldest = newest
    for each in row[1:]:
        if each.completion_tokens is None or each.completion_tokens > (oldest.completion_tokens or 0):
            break
        oldest = each
    if oldest is newest:
        return 0.0
    added = (newest.completion_tokens or 0) - (oldest.completion_tokens or 0)
    return round(added / (newest.taken_at - oldest.taken_at).total_seconds(), 1)

"""Prometheus metrics of Celery: counted in Valkey by whichever process runs a task, served by every worker.

A worker's tasks run in child processes that come and go, so their counts are kept outside of them: any worker's
endpoint tells of all workers, and a restart resets nothing. Scrape one of them.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import redis
from celery.signals import task_postrun, task_prerun, worker_ready
from django.conf import settings
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

KEY = "metrics:celery"
# The list that the broker keeps waiting tasks in.
QUEUE = "celery"
BOUNDS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
TIMEOUT_S = 2.0

_began: dict[str, float] = {}


def connect() -> None:
    task_prerun.connect(_note_begin)
    task_postrun.connect(_count)
    worker_ready.connect(_serve)


def _store() -> redis.Redis:
    return redis.Redis.from_url(settings.CELERY_BROKER_URL, socket_timeout=TIMEOUT_S, decode_responses=True)


def _note_begin(task_id: str = "", **signal: Any) -> None:
    _began[task_id] = time.monotonic()


def _count(task_id: str = "", task: Any = None, state: str | None = None, **signal: Any) -> None:
    """A count that gets lost is lost: metrics must not fail a task."""
    seconds = time.monotonic() - _began.pop(task_id, time.monotonic())
    name, bound = task.name, next((bound for bound in BOUNDS_S if seconds <= bound), "+Inf")
    try:
        with _store().pipeline(transaction=False) as pipeline:
            pipeline.hincrby(KEY, f"{name}|state|{(state or 'unknown').lower()}", 1)
            pipeline.hincrby(KEY, f"{name}|bucket|{bound}", 1)
            pipeline.hincrbyfloat(KEY, f"{name}|sum|", seconds)
            if state == "SUCCESS":
                pipeline.hset(KEY, f"{name}|success|", f"{time.time():.3f}")
            pipeline.execute()
    except redis.RedisError as error:
        logger.warning("task_not_counted task=%s error=%s", name, type(error).__name__)


def _serve(**signal: Any) -> None:
    if settings.WORKER_METRICS_PORT:
        registry = CollectorRegistry()
        registry.register(CeleryCollector())
        start_http_server(settings.WORKER_METRICS_PORT, settings.WORKER_METRICS_HOST, registry)


class CeleryCollector(Collector):
    """Reads the counts when a scrape asks."""

    def describe(self) -> list[Metric]:
        # Without it, registering would read Valkey.
        return []

    def collect(self) -> Iterator[Metric]:
        store = _store()
        kept: dict[str, str] = store.hgetall(KEY)  # type: ignore[assignment]  # decode_responses is set
        tasks: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for field, value in kept.items():
            name, kind, label = field.split("|")
            tasks[name][kind][label] = float(value)
        yield from _families(tasks)
        waiting = GaugeMetricFamily("celery_queue_length", "Tasks that wait for a worker.", labels=["queue"])
        prefix = settings.CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"]
        waiting.add_metric([QUEUE], store.llen(f"{prefix}{QUEUE}"))
        yield waiting


def _families(tasks: dict[str, dict[str, dict[str, float]]]) -> Iterator[Metric]:
    ended = CounterMetricFamily("celery_task", "Tasks that ended, by how.", labels=["task", "state"])
    lasted = HistogramMetricFamily("celery_task_duration_seconds", "How long tasks ran.", labels=["task"])
    succeeded = GaugeMetricFamily(
        "celery_task_last_success_timestamp_seconds", "When a task last ended well.", labels=["task"]
    )
    for name, kinds in sorted(tasks.items()):
        for state, count in sorted(kinds["state"].items()):
            ended.add_metric([name, state], count)
        total, buckets = 0.0, []
        for bound in [*map(str, BOUNDS_S), "+Inf"]:
            total += kinds["bucket"].get(bound, 0)
            buckets.append((bound, total))
        lasted.add_metric([name], buckets, kinds["sum"].get("", 0.0))
        if "" in kinds["success"]:
            succeeded.add_metric([name], kinds["success"][""])
    yield ended
    yield lasted
    yield succeeded

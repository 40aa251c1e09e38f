"""Metrics of Celery's tasks: counted where they run, told by any worker, kept over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from config import celery_metrics


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(celery_metrics, "KEY", "metrics:celery:test")
    yield
    celery_metrics._store().delete("metrics:celery:test")


def run(name: str, state: str) -> None:
    celery_metrics._note_begin(task_id="1")
    celery_metrics._count(task_id="1", task=SimpleNamespace(name=name), state=state)


def exposed() -> str:
    registry = CollectorRegistry()
    registry.register(celery_metrics.CeleryCollector())
    return generate_latest(registry).decode()


def test_outcomes_durations_and_the_last_success_are_told() -> None:
    for state in ("SUCCESS", "SUCCESS", "FAILURE"):
        run("a.task", state)
    text = exposed()
    assert 'celery_task_total{state="success",task="a.task"} 2.0' in text
    assert 'celery_task_total{state="failure",task="a.task"} 1.0' in text
    assert 'celery_task_duration_seconds_bucket{le="0.01",task="a.task"} 3.0' in text
    assert 'celery_task_duration_seconds_count{task="a.task"} 3.0' in text
    assert 'celery_task_last_success_timestamp_seconds{task="a.task"}' in text
    assert 'celery_queue_length{queue="celery"}' in text


def test_a_task_that_never_succeeded_has_no_success() -> None:
    run("b.task", "FAILURE")
    assert "last_success_timestamp_seconds{" not in exposed()


def test_a_lost_store_fails_no_task(monkeypatch: pytest.MonkeyPatch, settings: object) -> None:
    monkeypatch.setattr(settings, "CELERY_BROKER_URL", "redis://127.0.0.1:1/0", raising=False)
    run("c.task", "SUCCESS")

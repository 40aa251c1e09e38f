"""Everything that beat sends is a task that a worker knows."""

from __future__ import annotations

from config.celery import BEAT_SCHEDULE, app


def test_every_scheduled_task_exists() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in BEAT_SCHEDULE.values()} <= set(app.tasks)

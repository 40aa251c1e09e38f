"""The Celery application and the beat schedule. The only place that knows the tasks of all three apps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import crontab
from celery.signals import beat_init, worker_ready

from config import celery_metrics
from config.env import env_str

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("tokenfactory")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "pull receipts": {"task": "api.tasks.pull_receipts", "schedule": 5.0},
    "close stale records": {"task": "api.tasks.close_stale_records", "schedule": 60.0},
    "refresh balances": {"task": "api.tasks.refresh_balances", "schedule": 30.0},
    "ask deployments": {"task": "api.tasks.ask_deployments", "schedule": 5.0},
    "forget kept answers": {"task": "api.tasks.forget_kept_answers", "schedule": crontab(minute=50)},
    "expire invitations": {"task": "portal.tasks.expire_invitations", "schedule": crontab(minute=30)},
    "evaluate alerts": {"task": "portal.tasks.evaluate_alerts", "schedule": 60.0},
    "sweep alerts": {"task": "portal.tasks.sweep_alerts", "schedule": 10.0},
    "forget deliveries": {"task": "portal.tasks.forget_deliveries", "schedule": crontab(minute=5, hour=3)},
    "close organizations": {"task": "portal.tasks.close_organizations", "schedule": crontab(minute=15)},
    "publish snapshots": {"task": "portal.tasks.publish_snapshots", "schedule": 60.0},
    # Hourly, because the month ends at another hour in each organization's time zone; a repeat does nothing.
    "run the month": {"task": "billing.tasks.run_month", "schedule": crontab(minute=10)},
    "push pending invoices": {"task": "billing.tasks.push_pending", "schedule": crontab(minute=40)},
    "work pending events": {"task": "billing.tasks.work_pending_events", "schedule": 120.0},
    "recharge credit": {"task": "billing.tasks.recharge_due", "schedule": 60.0},
    "run dunning": {"task": "billing.tasks.run_dunning", "schedule": crontab(minute=15)},
    "forget exports": {"task": "billing.tasks.forget_exports", "schedule": crontab(minute="*/10")},
    "take rollups": {"task": "billing.tasks.take_rollups", "schedule": 5.0},
    "roll match rates": {"task": "billing.tasks.roll_match_rates", "schedule": 300.0},
    "forget rollup minutes": {"task": "billing.tasks.forget_rollup_minutes", "schedule": crontab(minute=35)},
    "tidy operations": {"task": "portal.tasks.tidy_operations", "schedule": crontab(minute=45)},
    "keep usage tables": {"task": "billing.tasks.keep_usage_tables", "schedule": crontab(minute=25)},
    "apply volume prices": {"task": "billing.tasks.apply_volume_tiers", "schedule": crontab(minute=55)},
    "check tax numbers": {"task": "billing.tasks.check_tax_ids", "schedule": crontab(minute=5, hour=4)},
    "expire credits": {"task": "billing.tasks.expire_credits", "schedule": crontab(minute=20)},
}
app.conf.beat_schedule = BEAT_SCHEDULE


def tell_ready(**signal: Any) -> None:
    """Touch the file that READY_FILE names, for the supervisor and for container health checks."""
    if path := env_str("READY_FILE", ""):
        Path(path).touch()


worker_ready.connect(tell_ready)
beat_init.connect(tell_ready)
celery_metrics.connect()

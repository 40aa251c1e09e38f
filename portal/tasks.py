"""Celery tasks of the portal: each calls one service and is safe to repeat."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal.alerts import delivery, evaluation
from portal.alerts import services as alerts
from portal.limit_templates import services as limit_templates
from portal.operations import services as operations
from portal.operator import services as operator
from portal.organizations import invitations, lifecycle
from portal.quotas import snapshot


@shared_task(name="portal.tasks.publish_snapshots")  # type: ignore[untyped-decorator]  # Celery has no types
def publish_snapshots() -> int:
    """Heals whatever write of limits was lost."""
    return snapshot.publish_all()


@shared_task(name="portal.tasks.expire_invitations")  # type: ignore[untyped-decorator]  # Celery has no types
def expire_invitations() -> int:
    return invitations.close_expired(now=timezone.now())


@shared_task(name="portal.tasks.close_organizations")  # type: ignore[untyped-decorator]  # Celery has no types
def close_organizations() -> int:
    """Ends the grace period of deleted organizations."""
    return lifecycle.close_due(now=timezone.now())


@shared_task(name="portal.tasks.run_invoices")  # type: ignore[untyped-decorator]  # Celery has no types
def run_invoices(run_id: int) -> None:
    """A slice; the next one is a task of its own, so that a long run holds no worker for long."""
    if operator.execute_run(run_id):
        run_invoices.delay(run_id)


@shared_task(name="portal.tasks.apply_limit_template")  # type: ignore[untyped-decorator]  # Celery has no types
def apply_limit_template(run_id: int) -> None:
    """A slice, as of a run of invoices."""
    if limit_templates.execute_run(run_id):
        apply_limit_template.delay(run_id)


@shared_task(name="portal.tasks.tidy_operations")  # type: ignore[untyped-decorator]  # Celery has no types
def tidy_operations() -> None:
    operations.tidy(now=timezone.now())


@shared_task(name="portal.tasks.evaluate_alerts")  # type: ignore[untyped-decorator]  # Celery has no types
def evaluate_alerts() -> int:
    return evaluation.evaluate_all(now=timezone.now())


@shared_task(name="portal.tasks.send_alert_mail")  # type: ignore[untyped-decorator]  # Celery has no types
def send_alert_mail(alert_id: int) -> None:
    alerts.send_mail(alert_id)


# A receiver that drips its answer is cut off; the delivery is tried again.
@shared_task(name="portal.tasks.deliver_webhook", soft_time_limit=30)  # type: ignore[untyped-decorator]  # Celery has no types
def deliver_webhook(delivery_id: int) -> None:
    delivery.deliver(delivery_id)


@shared_task(name="portal.tasks.sweep_alerts")  # type: ignore[untyped-decorator]  # Celery has no types
def sweep_alerts() -> None:
    """Starts what is due again, and what Celery was not told of."""
    now = timezone.now()
    for delivery_id in delivery.due(now=now):
        deliver_webhook.delay(delivery_id)
    for alert_id in alerts.unmailed(now=now):
        send_alert_mail.delay(alert_id)


@shared_task(name="portal.tasks.forget_deliveries")  # type: ignore[untyped-decorator]  # Celery has no types
def forget_deliveries() -> int:
    return delivery.forget_old(now=timezone.now())

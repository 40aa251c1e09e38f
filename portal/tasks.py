"""Celery tasks of the portal: each calls one service and is safe to repeat."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal.operations import services as operations
from portal.operator import services as operator
from portal.organizations import invitations
from portal.quotas import snapshot


@shared_task(name="portal.tasks.publish_snapshots")  # type: ignore[untyped-decorator]  # Celery has no types
def publish_snapshots() -> int:
    """Heals whatever write of limits was lost."""
    return snapshot.publish_all()


@shared_task(name="portal.tasks.expire_invitations")  # type: ignore[untyped-decorator]  # Celery has no types
def expire_invitations() -> int:
    return invitations.close_expired(now=timezone.now())


@shared_task(name="portal.tasks.run_invoices")  # type: ignore[untyped-decorator]  # Celery has no types
def run_invoices(run_id: int) -> None:
    operator.execute_run(run_id)


@shared_task(name="portal.tasks.tidy_operations")  # type: ignore[untyped-decorator]  # Celery has no types
def tidy_operations() -> None:
    operations.tidy(now=timezone.now())

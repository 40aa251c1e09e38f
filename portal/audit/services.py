"""Writes audit events. Call inside the transaction of the act itself, so that both stand or fall."""

from __future__ import annotations

from typing import Any

from django.db import connection, models

from portal.api_keys.redaction import redact
from portal.audit.models import AuditEvent
from portal.audit.origin import current
from portal.users.models import User

SYSTEM = "system"


def record_event(
    *,
    organization_id: int | None,
    actor: User | None,
    action: str,
    subject: models.Model,
    label: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
    once: bool = False,
) -> None:
    """`before` and `after` hold the changed fields as JSON values. Without an actor the service itself did it.

    From where it was done comes from the request under way (`origin.py`). Keys are cut out of all text. With `once`,
    for acts that a repeat does not do again, the first event of this action on this subject stays the only one.
    """
    origin = current()
    if once and _is_recorded(organization_id, action, subject):
        return
    AuditEvent.objects.create(
        organization_id=organization_id,
        actor=actor,
        actor_label=actor.email if actor else SYSTEM,
        action=action,
        subject_type=subject._meta.model_name or "",
        subject_id=str(subject.pk),
        subject_label=redact(label or str(subject))[:200],
        before=before,
        after=after,
        reason=redact(reason)[:500],
        address=origin.address,
        user_agent=redact(origin.user_agent),
        credential=origin.credential,
    )


def _is_recorded(organization_id: int | None, action: str, subject: models.Model) -> bool:
    """Decided one after the other: the lock is held until the transaction of the act ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{action} {subject.pk}"])
    events = AuditEvent.objects.filter(action=action, subject_id=str(subject.pk))
    if organization_id is not None:
        events = events.filter(organization_id=organization_id)
    return events.exists()

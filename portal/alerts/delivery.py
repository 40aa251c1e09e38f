"""Sends webhook deliveries: a row is claimed, tried, and tried again later until it is delivered or given up.

PostgreSQL is the queue: Celery is only told early, and a sweep finds whatever it was not told of or lost.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from kombu.exceptions import OperationalError

from portal.alerts import signatures
from portal.alerts.kinds import DeliveryState
from portal.alerts.models import WebhookDelivery, WebhookEndpoint
from portal.alerts.outbound import Outcome, post
from portal.organizations.models import Organization
from portal.sealing import SealBroken, unseal

logger = logging.getLogger(__name__)

# After each failed attempt; then it is given up. About a day and a half in all.
BACKOFF = [
    timedelta(seconds=10),
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=6),
    timedelta(hours=12),
    timedelta(hours=12),
]
# A worker that dies while it sends lets the row go after this; above the longest attempt.
LEASE = timedelta(minutes=2)
RETENTION = timedelta(days=30)
SWEEP_LIMIT = 500


def make_delivery(
    endpoint: WebhookEndpoint,
    *,
    event_id: uuid.UUID,
    event_type: str,
    organization: Organization,
    data: dict[str, Any],
) -> WebhookDelivery:
    now = timezone.now()
    body = {
        "id": str(event_id),
        "type": event_type,
        "created_at": now.isoformat(),
        "organization": organization.slug,
        "data": data,
    }
    return WebhookDelivery.objects.create(
        organization=organization,
        endpoint=endpoint,
        event_id=event_id,
        event_type=event_type,
        body=json.dumps(body, separators=(",", ":")),
        next_attempt_at=now,
    )


def enqueue_after_commit(delivery: WebhookDelivery) -> None:
    transaction.on_commit(partial(_enqueue, delivery.id))


def _enqueue(delivery_id: int) -> None:
    from portal.tasks import deliver_webhook

    try:
        deliver_webhook.delay(delivery_id)
    except OperationalError as error:
        # The sweep sends it.
        logger.warning("webhook_not_enqueued delivery=%s error=%s", delivery_id, type(error).__name__)


def due(*, now: datetime) -> list[int]:
    """What waits and may be tried: for the sweep."""
    waiting = WebhookDelivery.objects.filter(state=DeliveryState.PENDING, next_attempt_at__lte=now)
    return list(waiting.order_by("next_attempt_at").values_list("id", flat=True)[:SWEEP_LIMIT])


def deliver(delivery_id: int, *, now: datetime | None = None) -> None:
    """One attempt, if it is due. A repeat at the same time does nothing: the claim goes to one."""
    now = now or timezone.now()
    claimed = WebhookDelivery.objects.filter(
        id=delivery_id, state=DeliveryState.PENDING, next_attempt_at__lte=now
    ).update(next_attempt_at=now + LEASE, attempts=F("attempts") + 1, last_attempt_at=now)
    if not claimed:
        return
    delivery = WebhookDelivery.objects.select_related("endpoint").get(id=delivery_id)
    try:
        outcome = _attempt(delivery)
    except SoftTimeLimitExceeded:
        outcome = Outcome(None, "The answer took too long.", int((timezone.now() - now).total_seconds() * 1000))
    _record(delivery, outcome, now)


def _attempt(delivery: WebhookDelivery) -> Outcome:
    endpoint = delivery.endpoint
    if not endpoint.is_enabled:
        return Outcome(None, "The webhook was switched off.", 0)
    body = delivery.body.encode()
    try:
        secrets = _secrets_in_force(endpoint)
    except SealBroken as error:
        return Outcome(None, f"{error} Rotate the secret.", 0)
    headers = signatures.headers(secrets, message_id=str(delivery.event_id), timestamp=int(time.time()), body=body)
    return post(
        endpoint.url,
        body,
        {**headers, "content-type": "application/json", "user-agent": "TokenFactory-Webhooks/1"},
        allow_private=settings.WEBHOOK_ALLOW_PRIVATE,
    )


def _secrets_in_force(endpoint: WebhookEndpoint) -> list[str]:
    """The newest first."""
    secrets = [unseal(endpoint.sealed_secret)]
    until = endpoint.previous_works_until
    if endpoint.sealed_previous_secret and until is not None and until > timezone.now():
        secrets.append(unseal(endpoint.sealed_previous_secret))
    return secrets


def _record(delivery: WebhookDelivery, outcome: Outcome, now: datetime) -> None:
    delivery.last_status, delivery.last_error = outcome.status, outcome.error
    delivery.last_duration_ms = outcome.duration_ms
    if not outcome.error:
        delivery.state, delivery.next_attempt_at = DeliveryState.DELIVERED, None
    elif delivery.attempts > len(BACKOFF) or outcome.status == 410 or not delivery.endpoint.is_enabled:
        delivery.state, delivery.next_attempt_at = DeliveryState.FAILED, None
    else:
        delivery.next_attempt_at = now + BACKOFF[delivery.attempts - 1]
    delivery.save(update_fields=["state", "next_attempt_at", "last_status", "last_error", "last_duration_ms"])
    logger.info(
        "webhook_tried delivery=%s state=%s attempts=%s status=%s",
        delivery.id,
        delivery.state,
        delivery.attempts,
        outcome.status,
    )


def forget_old(*, now: datetime) -> int:
    """Deliveries that are over are kept for a month."""
    old = WebhookDelivery.objects.filter(created_at__lt=now - RETENTION).exclude(state=DeliveryState.PENDING)
    return old.delete()[0]

"""Webhook endpoints of an organization: add, change, rotate the secret, remove, test; and send a delivery again."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.alerts import signatures
from portal.alerts.delivery import enqueue_after_commit, make_delivery
from portal.alerts.kinds import DeliveryState
from portal.alerts.models import WebhookDelivery, WebhookEndpoint
from portal.alerts.outbound import TargetRefused, check_url, resolve
from portal.audit.services import record_event
from portal.errors import PortalError
from portal.organizations.models import Organization
from portal.sealing import seal
from portal.users.models import User

ENDPOINT_LIMIT = 10
# Long enough to roll out a receiver with the new secret.
OVERLAP = timedelta(hours=24)


class WebhookRefused(PortalError):
    code = "webhook_refused"


@dataclass(frozen=True, slots=True)
class IssuedEndpoint:
    """`secret` is shown once."""

    endpoint: WebhookEndpoint
    secret: str


def _check(url: str) -> None:
    try:
        parts = check_url(url, allow_private=settings.WEBHOOK_ALLOW_PRIVATE)
        resolve(parts, allow_private=settings.WEBHOOK_ALLOW_PRIVATE)
    except TargetRefused as error:
        raise WebhookRefused(str(error)) from None


@transaction.atomic
def add(*, organization: Organization, url: str, description: str, actor: User) -> IssuedEndpoint:
    """A repeat adds a second one."""
    _check(url)
    Organization.objects.select_for_update().get(id=organization.id)
    if WebhookEndpoint.objects.filter(organization=organization).count() >= ENDPOINT_LIMIT:
        raise WebhookRefused(
            _("An organization has at most %(limit)s webhooks; remove one first.") % {"limit": ENDPOINT_LIMIT}
        )
    secret = signatures.generate()
    endpoint = WebhookEndpoint.objects.create(
        organization=organization, url=url, description=description, sealed_secret=seal(secret), created_by=actor
    )
    _record(endpoint, actor, "webhook.created", after={"url": url, "description": description})
    return IssuedEndpoint(endpoint, secret)


@transaction.atomic
def change(*, endpoint: WebhookEndpoint, url: str, description: str, is_enabled: bool, actor: User) -> None:
    """A repeat changes nothing."""
    before = {"url": endpoint.url, "description": endpoint.description, "enabled": endpoint.is_enabled}
    after = {"url": url, "description": description, "enabled": is_enabled}
    if before == after:
        return
    if url != endpoint.url:
        _check(url)
    endpoint.url, endpoint.description, endpoint.is_enabled = url, description, is_enabled
    endpoint.save(update_fields=["url", "description", "is_enabled"])
    _record(endpoint, actor, "webhook.changed", before=before, after=after)


@transaction.atomic
def rotate_secret(*, endpoint: WebhookEndpoint, actor: User) -> IssuedEndpoint:
    """A new secret; for a day every delivery is signed with both. A repeat makes another, and drops the oldest."""
    endpoint = WebhookEndpoint.objects.select_for_update().get(id=endpoint.id)
    secret = signatures.generate()
    endpoint.sealed_previous_secret = endpoint.sealed_secret
    endpoint.previous_works_until = timezone.now() + OVERLAP
    endpoint.sealed_secret = seal(secret)
    endpoint.save(update_fields=["sealed_secret", "sealed_previous_secret", "previous_works_until"])
    _record(
        endpoint,
        actor,
        "webhook.secret_rotated",
        after={"old secret signs until": f"{endpoint.previous_works_until:%Y-%m-%d %H:%M} UTC"},
    )
    return IssuedEndpoint(endpoint, secret)


@transaction.atomic
def remove(*, endpoint: WebhookEndpoint, actor: User) -> None:
    """With its deliveries; what waits is not sent."""
    _record(endpoint, actor, "webhook.removed", before={"url": endpoint.url})
    endpoint.delete()


@transaction.atomic
def send_test(*, endpoint: WebhookEndpoint, actor: User) -> WebhookDelivery:
    """An event of the type `webhook.test`, so that a receiver can be tried before it is needed."""
    delivery = make_delivery(
        endpoint,
        event_id=uuid.uuid4(),
        event_type="webhook.test",
        organization=endpoint.organization,
        data={"message": "This is a test.", "sent_by": actor.email},
    )
    enqueue_after_commit(delivery)
    return delivery


@transaction.atomic
def resend(*, delivery: WebhookDelivery, actor: User) -> None:
    """Tries again from now, with the same id and body, whatever became of it before."""
    if not delivery.endpoint.is_enabled:
        raise WebhookRefused(_("The webhook is switched off; switch it on first."))
    WebhookDelivery.objects.filter(id=delivery.id).update(
        state=DeliveryState.PENDING, attempts=0, next_attempt_at=timezone.now()
    )
    _record(delivery.endpoint, actor, "webhook.resent", after={"event": str(delivery.event_id)})
    enqueue_after_commit(delivery)


def _record(
    endpoint: WebhookEndpoint,
    actor: User,
    action: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    record_event(
        organization_id=endpoint.organization_id,
        actor=actor,
        action=action,
        subject=endpoint,
        label=endpoint.description or endpoint.url,
        before=before,
        after=after,
    )

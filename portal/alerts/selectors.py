"""Reads of alert rules, alerts, webhooks and their deliveries."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, OuterRef, Q, Subquery

from portal.alerts.kinds import DeliveryState
from portal.alerts.models import Alert, AlertRule, WebhookDelivery, WebhookEndpoint
from portal.organizations.models import Organization


def rules_of(organization: Organization) -> list[AlertRule]:
    found = AlertRule.objects.filter(organization=organization).select_related("project", "api_key")
    return list(found.order_by("kind", "id"))


def alerts_page(
    organization: Organization, *, after: int | None = None, limit: int = 50
) -> tuple[list[Alert], int | None]:
    """Newest first, with the id to ask for what is older."""
    found = (
        Alert.objects.filter(organization=organization).select_related("rule__project", "rule__api_key").order_by("-id")
    )
    if after is not None:
        found = found.filter(id__lt=after)
    rows = list(found[: limit + 1])
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def endpoints_of(organization: Organization) -> list[WebhookEndpoint]:
    """With the numbers of their deliveries as `delivered`, `waiting` and `failed`, and the newest one's state as
    `last_state`."""
    newest = WebhookDelivery.objects.filter(endpoint=OuterRef("id")).order_by("-id").values("state")
    return list(
        WebhookEndpoint.objects.filter(organization=organization)
        .annotate(
            delivered=Count("deliveries", filter=Q(deliveries__state=DeliveryState.DELIVERED)),
            waiting=Count("deliveries", filter=Q(deliveries__state=DeliveryState.PENDING)),
            failed=Count("deliveries", filter=Q(deliveries__state=DeliveryState.FAILED)),
            last_state=Subquery(newest[:1]),
        )
        .order_by("id")
    )


@dataclass(frozen=True, slots=True)
class DeliveryFilters:
    webhook_id: int | None = None
    state: str = ""


def deliveries_page(
    organization: Organization, filters: DeliveryFilters, *, after: int | None = None, limit: int = 50
) -> tuple[list[WebhookDelivery], int | None]:
    """Newest first, with the id to ask for what is older."""
    found = WebhookDelivery.objects.filter(organization=organization).select_related("endpoint").order_by("-id")
    if filters.webhook_id is not None:
        found = found.filter(endpoint_id=filters.webhook_id)
    if filters.state:
        found = found.filter(state=filters.state)
    if after is not None:
        found = found.filter(id__lt=after)
    rows = list(found[: limit + 1])
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None

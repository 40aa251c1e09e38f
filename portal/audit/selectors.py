"""Reads of audit events, and how they are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from billing.money import format_nano
from portal.audit.models import AuditEvent
from portal.organizations.models import Organization

ACTIONS = {
    "api_key.issued": "created the API key",
    "api_key.revoked": "revoked the API key",
    "api_key.changed": "changed the API key",
    "api_key.rotated": "rotated the API key",
    "api_key.old_secret_ended": "ended the old secret of",
    "management_key.issued": "created the management key",
    "management_key.revoked": "revoked the management key",
    "organization.transferred": "handed over",
    "organization.deletion_requested": "deleted",
    "organization.restored": "restored",
    "organization.closed": "closed",
    "organization.origins_changed": "changed the allowed origins of",
    "organization.two_factor_changed": "changed the sign-in rule of",
    "project.renamed": "renamed the project",
    "alert_rule.created": "set the alert",
    "alert_rule.removed": "removed the alert",
    "webhook.created": "added the webhook",
    "webhook.changed": "changed the webhook",
    "webhook.secret_rotated": "rotated the secret of the webhook",
    "webhook.removed": "removed the webhook",
    "webhook.resent": "sent again to the webhook",
    "session.ended": "signed out a browser of",
    "organization.created": "created the organization",
    "organization.changed": "changed the settings of",
    "organization.suspended": "suspended",
    "organization.resumed": "resumed",
    "project.created": "created the project",
    "member.invited": "invited",
    "member.invitation_withdrawn": "withdrew the invitation of",
    "member.joined": "joined:",
    "member.role_changed": "changed the role of",
    "member.removed": "removed",
    "quota.changed": "set the limit",
    "quota.removed": "removed the limit",
    "credit.granted": "gave credit to",
    "billing.terms_changed": "changed the credit limit of",
    "billing.details_changed": "changed the billing details of",
    "operator.made": "made an operator of",
    "operator.acting_started": "began to act for",
    "operator.acting_stopped": "stopped acting for",
    "operator_key.issued": "created the operator key",
    "operator_key.revoked": "revoked the operator key",
    "model.added": "added the model",
    "model.changed": "changed the model",
    "deployment.added": "added the deployment",
    "deployment.changed": "changed the deployment",
    "price.set": "set a price of",
    "price.discounted": "gave a discount on",
    "price.discount_ended": "ended the discount",
    "volume_tiers.changed": "changed the",
    "invoice_run.started": "started the invoice run",
    "period.closed": "closed the month",
    "promo_code.made": "made the promo code",
    "promo_code.switched_on": "switched on the promo code",
    "promo_code.switched_off": "switched off the promo code",
    "tax_rate.set": "set the tax rate",
    "payment_event.replayed": "replayed the payment event",
}


# What an event is about: the part of its action before the point.
SUBJECTS = {
    "api_key": _("API keys"),
    "management_key": _("Management keys"),
    "member": _("Members"),
    "organization": _("Organization"),
    "project": _("Projects"),
    "quota": _("Limits"),
    "billing": _("Billing"),
    "credit": _("Credit"),
    "alert_rule": _("Alerts"),
    "webhook": _("Webhooks"),
}
# The same of what operators do for the whole service.
SERVICE_SUBJECTS = {
    **SUBJECTS,
    "operator": _("Operators"),
    "operator_key": _("Operator keys"),
    "model": _("Models"),
    "deployment": _("Deployments"),
    "price": _("Prices"),
    "invoice_run": _("Invoice runs"),
    "invoice": _("Invoices"),
    "period": _("Closed months"),
    "promo_code": _("Promo codes"),
    "tax_rate": _("Tax rates"),
    "payment_event": _("Payment events"),
}


@dataclass(frozen=True, slots=True)
class Change:
    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """An event as a sentence: actor, verb, subject; with the fields that changed."""

    event: AuditEvent
    verb: str
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class EventFilters:
    """Empty or None leaves everything in. `about` is a key of SUBJECTS; times are half-open."""

    about: str = ""
    person: str = ""
    text: str = ""
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    rows: list[AuditEvent]
    # The id to ask for what is older; None at the end.
    next: int | None


def _events(organization: Organization | None, filters: EventFilters) -> QuerySet[AuditEvent]:
    events = AuditEvent.objects.select_related("organization").order_by("-id")
    if organization is not None:
        events = events.filter(organization=organization)
    if filters.about:
        events = events.filter(action__startswith=f"{filters.about}.")
    if filters.person:
        events = events.filter(Q(actor_label__icontains=filters.person) | Q(credential__icontains=filters.person))
    if filters.text:
        events = events.filter(
            Q(subject_label__icontains=filters.text)
            | Q(action__icontains=filters.text)
            | Q(reason__icontains=filters.text)
        )
    if filters.start is not None:
        events = events.filter(created_at__gte=filters.start)
    if filters.end is not None:
        events = events.filter(created_at__lt=filters.end)
    return events


def event_page(
    organization: Organization | None, filters: EventFilters, *, after: int | None = None, limit: int = 50
) -> EventPage:
    """Newest first, one query; `after` is the `next` of the page before.

    Without an organization everything, for operators: also what concerns the service as a whole.
    """
    events = _events(organization, filters)
    if after is not None:
        events = events.filter(id__lt=after)
    rows = list(events[: limit + 1])
    return EventPage(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)


def all_events(organization: Organization | None, filters: EventFilters) -> Iterator[AuditEvent]:
    """Every event, newest first, a thousand at a time."""
    after: int | None = None
    while True:
        page = event_page(organization, filters, after=after, limit=1000)
        yield from page.rows
        if page.next is None:
            return
        after = page.next


def _printed(field: str, value: Any) -> str | None:
    """A value as people read it; None stays None: there was nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return format_nano(value, "USD") if field.endswith("_nano") else f"{value:,}"
    return None if value is None else str(value)


def describe(event: AuditEvent) -> Told:
    before, after = event.before or {}, event.after or {}
    changes = [
        Change(
            field.removesuffix("_nano").replace("_", " "),
            _printed(field, before.get(field)),
            _printed(field, after.get(field)),
        )
        for field in dict.fromkeys([*before, *after])
        if before.get(field) != after.get(field)
    ]
    return Told(event, ACTIONS.get(event.action, event.action), changes)

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
    "api_key.issued": _("created the API key"),
    "api_key.revoked": _("revoked the API key"),
    "api_key.changed": _("changed the API key"),
    "api_key.rotated": _("rotated the API key"),
    "api_key.old_secret_ended": _("ended the old secret of"),
    "management_key.issued": _("created the management key"),
    "management_key.revoked": _("revoked the management key"),
    "organization.transferred": _("handed over"),
    "organization.deletion_requested": _("deleted"),
    "organization.restored": _("restored"),
    "organization.closed": _("closed"),
    "organization.origins_changed": _("changed the allowed origins of"),
    "organization.responses_kept": _("let responses be kept in"),
    "organization.responses_not_kept": _("stopped keeping responses in"),
    "organization.two_factor_changed": _("changed the sign-in rule of"),
    "project.renamed": _("renamed the project"),
    "alert_rule.created": _("set the alert"),
    "alert_rule.removed": _("removed the alert"),
    "webhook.created": _("added the webhook"),
    "webhook.changed": _("changed the webhook"),
    "webhook.secret_rotated": _("rotated the secret of the webhook"),
    "webhook.removed": _("removed the webhook"),
    "webhook.resent": _("sent again to the webhook"),
    "session.ended": _("signed out a browser of"),
    "organization.created": _("created the organization"),
    "organization.changed": _("changed the settings of"),
    "organization.suspended": _("suspended"),
    "organization.resumed": _("resumed"),
    "project.created": _("created the project"),
    "member.invited": _("invited"),
    "member.invitation_withdrawn": _("withdrew the invitation of"),
    "member.joined": _("joined:"),
    "member.role_changed": _("changed the role of"),
    "member.removed": _("removed"),
    "quota.changed": _("set the limit"),
    "quota.removed": _("removed the limit"),
    "credit.granted": _("gave credit to"),
    "billing.terms_changed": _("changed the credit limit of"),
    "billing.details_changed": _("changed the billing details of"),
    "operator.made": _("made an operator of"),
    "operator.acting_started": _("began to act for"),
    "operator.acting_stopped": _("stopped acting for"),
    "operator_key.issued": _("created the operator key"),
    "operator_key.revoked": _("revoked the operator key"),
    "model.added": _("added the model"),
    "model.changed": _("changed the model"),
    "deployment.added": _("added the deployment"),
    "deployment.changed": _("changed the deployment"),
    "price.set": _("set a price of"),
    "price.discounted": _("gave a discount on"),
    "price.discount_ended": _("ended the discount"),
    "volume_tiers.changed": _("changed the"),
    "invoice_run.started": _("started the invoice run"),
    "invoice_run.retried": _("tried again in the invoice run"),
    "period.closed": _("closed the month"),
    "promo_code.made": _("made the promo code"),
    "promo_code.switched_on": _("switched on the promo code"),
    "promo_code.switched_off": _("switched off the promo code"),
    "tax_rate.set": _("set the tax rate"),
    "payment_event.replayed": _("replayed the payment event"),
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
        return str(_("yes") if value else _("no"))
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
    return Told(event, str(ACTIONS.get(event.action, event.action)), changes)

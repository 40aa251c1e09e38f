"""Reads of audit events; `wording.py` tells them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from portal.audit.models import AuditEvent
from portal.organizations.models import Organization

# What an event is about: the part of its action before the point.
SUBJECTS = {
    "api_key": _("API keys"),
    "management_key": _("Management keys"),
    "member": _("Members"),
    "organization": _("Organization"),
    "project": _("Projects"),
    "quota": _("Limits"),
    "limit_template": _("Limit templates"),
    "billing": _("Billing"),
    "credit": _("Credit"),
    "invoice": _("Invoices"),
    "fee": _("Fees"),
    "price": _("Prices"),
    "usage": _("Exports"),
    "alert_rule": _("Alerts"),
    "webhook": _("Webhooks"),
    "conversation": _("Shared conversations"),
}
# The same of what operators do for the whole service.
SERVICE_SUBJECTS = {
    **SUBJECTS,
    "operator": _("Operators"),
    "operator_key": _("Operator keys"),
    "model": _("Models"),
    "deployment": _("Deployments"),
    "invoice_run": _("Invoice runs"),
    "period": _("Closed months"),
    "promo_code": _("Promo codes"),
    "tax_rate": _("Tax rates"),
    "volume_tiers": _("Volume tiers"),
    "payment_event": _("Payment events"),
    "session": _("Sessions"),
}


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

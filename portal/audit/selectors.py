"""Reads of audit events, and how they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

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


def events_of(organization: Organization) -> QuerySet[AuditEvent]:
    return AuditEvent.objects.filter(organization=organization).order_by("-id")


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

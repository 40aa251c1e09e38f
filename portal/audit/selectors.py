"""Reads of audit events."""

from __future__ import annotations

from django.db.models import QuerySet

from portal.audit.models import AuditEvent
from portal.organizations.models import Organization


def events_of(organization: Organization) -> QuerySet[AuditEvent]:
    return AuditEvent.objects.filter(organization=organization).order_by("-id")

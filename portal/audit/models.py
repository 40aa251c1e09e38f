"""Who did what, before, after, why and from where. Append-only: the database refuses updates and deletes."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from portal.organizations.models import Organization


class AuditEvent(models.Model):
    """`actor_label` keeps the name that was true then; `credential` names the management key they acted through.

    No secret or prompt is ever written here.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, null=True, blank=True, related_name="audit_events"
    )
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    actor_label = models.CharField(max_length=254)
    action = models.CharField(max_length=60)
    subject_type = models.CharField(max_length=30)
    subject_id = models.CharField(max_length=64)
    subject_label = models.CharField(max_length=200, blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    # From where: empty when the service itself or a command did it.
    address = models.GenericIPAddressField(null=True, blank=True)
    user_agent = models.CharField(max_length=200, blank=True)
    credential = models.CharField(max_length=140, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        indexes = [
            models.Index(fields=["organization", "-id"], name="audit_by_organization"),
            models.Index(fields=["organization", "action", "-id"], name="audit_by_action"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.subject_label} by {self.actor_label}"

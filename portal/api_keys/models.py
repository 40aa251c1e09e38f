"""The secret of a project. The secret itself is shown once; a prefix and a keyed digest stay."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.organizations.models import Organization, Project


class Purpose(models.TextChoices):
    CLIENT = "client", "Client"
    PLAYGROUND = "playground", "Playground"


class ApiKey(models.Model):
    """`organization` repeats the project's, so that one read tells who pays; the database keeps them equal.

    A playground key has a secret nobody knows: it exists so that calls from the portal are metered as any other.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="api_keys")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    purpose = models.CharField(max_length=12, choices=Purpose.choices, default=Purpose.CLIENT)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "portal"
        indexes = [models.Index(fields=["organization", "-id"], name="api_key_by_organization")]
        constraints = [
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(purpose=Purpose.PLAYGROUND, revoked_at=None),
                name="api_key_one_playground_per_project",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

"""Secrets of programs: API keys call models for a project, management keys act for an organization, operator keys for
the service, and none can do another's. A secret itself is shown once; a prefix and a keyed digest stay."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.api_keys.routes import Route as Route
from portal.organizations.models import Organization, Project
from portal.organizations.roles import Role


class Purpose(models.TextChoices):
    CLIENT = "client", _("Client")
    PLAYGROUND = "playground", _("Playground")


class ApiKey(models.Model):
    """`organization` repeats the project's, so that one read tells who pays; the database keeps them equal.

    A playground key has a secret nobody knows: it exists so that calls from the portal are metered as any other.
    An empty list of routes, models or networks allows all of them. A rotation replaces the secret of the same row, so
    the key's limits, budget and usage go on; the secret it replaced works until the overlap ends (`RetiredSecret`).
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="api_keys")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=20)
    digest = models.CharField(max_length=64, unique=True)
    purpose = models.CharField(max_length=12, choices=Purpose.choices, default=Purpose.CLIENT)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    rotated_at = models.DateTimeField(null=True, blank=True)
    allowed_routes = ArrayField(models.CharField(max_length=20, choices=Route.choices), default=list, blank=True)
    allowed_models = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    allowed_networks = ArrayField(models.CharField(max_length=50), default=list, blank=True)

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


class RetiredSecret(models.Model):
    """A secret that a rotation replaced. It works until `works_until`, so that programs can be changed one by one."""

    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="retired_secrets")
    prefix = models.CharField(max_length=20)
    digest = models.CharField(max_length=64, unique=True)
    retired_at = models.DateTimeField(default=timezone.now)
    works_until = models.DateTimeField()

    class Meta:
        app_label = "portal"

    def __str__(self) -> str:
        return f"{self.prefix}… until {self.works_until:%Y-%m-%d %H:%M}"


class PersonalKey(models.Model):
    """What acts in the name of the person who made it, in the management API."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=20)
    digest = models.CharField(max_length=64, unique=True)
    allowed_networks = ArrayField(models.CharField(max_length=50), default=list, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class ManagementKey(PersonalKey):
    """Acts for one organization, with a role, in the name of the member who made it.

    It ends with that membership: when its maker leaves, or no longer may do what the key may, it is revoked.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="management_keys")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        app_label = "portal"
        indexes = [models.Index(fields=["organization", "-id"], name="management_key_by_organization")]


class OperatorKey(PersonalKey):
    """Acts for the whole service, in the name of the operator who made it: opens the operator's paths and no other.

    Without `may_change` it only reads. It always ends, and works only while its maker is an operator with a second
    factor.
    """

    may_change = models.BooleanField(default=False)

    class Meta:
        app_label = "portal"
        constraints = [
            models.CheckConstraint(condition=Q(expires_at__isnull=False), name="operator_key_always_expires")
        ]

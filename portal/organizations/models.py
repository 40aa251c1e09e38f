"""Who pays (Organization), who works there (Member, Invitation), and how it is divided (Project)."""

from __future__ import annotations

from zoneinfo import available_timezones

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal import permissions
from portal.organizations.origins import ORIGIN_LENGTH
from portal.organizations.roles import Role
from portal.permissions import Permission


def validate_time_zone(value: str) -> None:
    if value not in available_timezones():
        raise ValidationError(
            _("%(value)s is not a time zone name; use one such as Europe/Amsterdam.") % {"value": repr(value)}
        )


class Organization(models.Model):
    """`time_zone` decides when daily and monthly windows begin. A suspended organization is refused by the gateway.

    An owner who deletes sets `deletes_at`: calls are refused at once, and until that moment it can be restored. Then it
    is closed: nobody is in it any more, while its books and its audit log stay.

    `allowed_origins` are the sites whose pages may use its keys (`origins.py`); by default none. With
    `keeps_responses` calls of the Responses API may be kept, prompt and answer; by default nothing is.
    """

    name = models.CharField(max_length=100)
    slug = models.SlugField(max_length=60, unique=True)
    time_zone = models.CharField(max_length=64, default="UTC", validators=[validate_time_zone])
    suspended_at = models.DateTimeField(null=True, blank=True)
    requires_two_factor = models.BooleanField(default=False)
    allowed_origins = ArrayField(models.CharField(max_length=ORIGIN_LENGTH), default=list, blank=True)
    keeps_responses = models.BooleanField(default=False)
    deletes_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        indexes = [
            models.Index(
                fields=["deletes_at"],
                condition=Q(deletes_at__isnull=False, closed_at=None),
                name="organization_to_be_deleted",
            ),
            # Few have any, and the gateways ask for all of them.
            models.Index(fields=["id"], condition=~Q(allowed_origins=[]), name="organization_with_origins"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_suspended(self) -> bool:
        return self.suspended_at is not None

    @property
    def is_refused(self) -> bool:
        """Whether the gateways refuse its calls."""
        return self.suspended_at is not None or self.deletes_at is not None


class Member(models.Model):
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.DEVELOPER)
    joined_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [models.UniqueConstraint(fields=["user", "organization"], name="member_once_per_organization")]

    def __str__(self) -> str:
        return f"{self.user} in {self.organization}"

    @property
    def role_in_force(self) -> Role:
        """The member's role, or that of the management key they act through."""
        key = self.user.management_key
        return Role(self.role if key is None else key.role)

    def may(self, permission: Permission) -> bool:
        return permissions.allows(self.role_in_force, permission)


class Invitation(models.Model):
    """An address asked to join. Open until accepted, closed or past `expires_at`; only the token's digest is kept."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.DEVELOPER)
    token_digest = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "portal"
        constraints = [
            models.UniqueConstraint(
                "organization",
                Lower("email"),
                condition=Q(accepted_at=None, closed_at=None),
                name="invitation_open_once_per_address",
            )
        ]

    def __str__(self) -> str:
        return f"{self.email} to {self.organization}"


class Project(models.Model):
    """An archived project's keys are refused and no new ones are made for it; its usage and limits stay."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="projects")
    name = models.CharField(max_length=100)
    slug = models.SlugField(max_length=60)
    is_default = models.BooleanField(default=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.UniqueConstraint(fields=["organization", "slug"], name="project_slug_once_per_organization"),
            models.UniqueConstraint(
                fields=["organization"], condition=Q(is_default=True), name="project_one_default_per_organization"
            ),
            models.CheckConstraint(
                condition=Q(is_default=False) | Q(archived_at=None), name="project_default_is_not_archived"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_archived(self) -> bool:
        return self.archived_at is not None

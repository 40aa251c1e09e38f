"""Limit templates: named sets of limits, perhaps with a credit limit and a discount, that operators give organizations.

What a template says is a version: never edited, so that it stays known what each organization was given.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.operator.models import RunState
from portal.organizations.models import Organization
from portal.quotas.models import LimitFields


class LimitTemplate(models.Model):
    """At most one is the default: what new organizations begin with. A retired one is given to nobody any more, while
    those who have it keep it."""

    name = models.CharField(max_length=60, unique=True)
    is_default = models.BooleanField(default=False)
    retired_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="limit_template_default"),
            models.CheckConstraint(
                condition=Q(is_default=False) | Q(retired_at=None), name="limit_template_default_is_not_retired"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_retired(self) -> bool:
        return self.retired_at is not None


class TemplateVersion(models.Model):
    """Amounts are in the currency of the organization that uses it. None: what the organization has is left alone."""

    template = models.ForeignKey(LimitTemplate, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    credit_limit_nano = models.BigIntegerField(null=True)
    # Off all list prices; 1000 is 10 %.
    discount_basis_points = models.PositiveIntegerField(null=True)
    reason = models.CharField(max_length=300, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.UniqueConstraint(fields=["template", "number"], name="template_version_once"),
            models.CheckConstraint(
                condition=Q(credit_limit_nano=None) | Q(credit_limit_nano__gte=0), name="template_version_credit_limit"
            ),
            models.CheckConstraint(
                condition=Q(discount_basis_points=None)
                | (Q(discount_basis_points__gte=1) & Q(discount_basis_points__lte=10_000)),
                name="template_version_discount",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.template} v{self.number}"


class TemplateLimit(LimitFields):
    """A limit of each organization that uses the version."""

    version = models.ForeignKey(TemplateVersion, on_delete=models.CASCADE, related_name="limits")

    class Meta:
        app_label = "portal"
        constraints = [
            *LimitFields.constraints("template_limit"),
            models.UniqueConstraint(fields=["version", "model", "kind", "window"], name="template_limit_once"),
        ]


class TemplateUse(models.Model):
    """Which version an organization has. `discount_id` is the discount that the template gave and that still runs."""

    organization = models.OneToOneField(
        Organization, on_delete=models.CASCADE, primary_key=True, related_name="template_use"
    )
    version = models.ForeignKey(TemplateVersion, on_delete=models.PROTECT, related_name="uses")
    discount_id = models.BigIntegerField(null=True)
    applied_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"

    def __str__(self) -> str:
        return f"{self.organization}: {self.version}"


class TemplateRun(models.Model):
    """A version on its way to many organizations: which, how far, and what came of it.

    `search` and `uses` say which (portal/limit_templates/selectors.py); `position` is the organization behind which to
    go on; `failures` holds the first ones as [slug, reason].
    """

    version = models.ForeignKey(TemplateVersion, on_delete=models.CASCADE, related_name="runs")
    search = models.CharField(max_length=100, blank=True)
    uses = models.CharField(max_length=20, blank=True)
    reason = models.CharField(max_length=300)
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.QUEUED)
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    total = models.PositiveIntegerField(default=0)
    changed = models.PositiveIntegerField(default=0)
    unchanged = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    failures = models.JSONField(default=list)
    position = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "portal"

    def __str__(self) -> str:
        return f"{self.version} for {self.total}"

    @property
    def done(self) -> int:
        return self.changed + self.unchanged + self.failed

    @property
    def percent(self) -> int:
        return min(100, 100 * self.done // self.total) if self.total else 0

    @property
    def is_over(self) -> bool:
        return self.state in (RunState.FINISHED, RunState.FAILED)

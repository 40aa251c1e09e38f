"""Allowed use in a window: of an organization, a project, a member or an API key; of all models or of one."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.api_keys.models import ApiKey
from portal.organizations.models import Member, Organization, Project


class QuotaKind(models.TextChoices):
    REQUESTS = "requests", _("Requests")
    TOKENS = "tokens", _("Tokens")
    INPUT_TOKENS = "input_tokens", _("Input tokens")
    OUTPUT_TOKENS = "output_tokens", _("Output tokens")
    SPEND = "spend", _("Spend")
    CONCURRENCY = "concurrency", _("Requests at the same time")


class Window(models.TextChoices):
    """A minute's limit is a bucket that refills evenly; a day, a week (from Monday) and a month are the calendar's, in
    the organization's time zone; lifetime never begins anew."""

    MINUTE = "minute", _("per minute")
    DAY = "day", _("per day")
    WEEK = "week", _("per week")
    MONTH = "month", _("per month")
    LIFETIME = "lifetime", _("in all")
    NOW = "now", _("at any moment")


class Mode(models.TextChoices):
    """What happens to a call that has no room. Whatever the mode, the call is counted."""

    HARD = "hard", _("Refuse the call")
    SOFT = "soft", _("Let it through and alert")
    SHADOW = "shadow", _("Let it through and only log")


class LimitFields(models.Model):
    """What a limit says. `limit` counts requests, tokens (prompt and completion) or, for spend, nano-units of the
    currency; zero refuses everything."""

    # The public name of the one model it counts; empty counts all.
    model = models.CharField(max_length=200, blank=True, default="")
    kind = models.CharField(max_length=13, choices=QuotaKind.choices)
    window = models.CharField(max_length=8, choices=Window.choices)
    limit = models.BigIntegerField(validators=[MinValueValidator(0)])
    mode = models.CharField(max_length=6, choices=Mode.choices, default=Mode.HARD)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.get_window_display()}".strip()

    @staticmethod
    def constraints(table: str) -> list[models.BaseConstraint]:
        return [
            models.CheckConstraint(condition=Q(limit__gte=0), name=f"{table}_limit_not_negative"),
            models.CheckConstraint(
                condition=(Q(kind=QuotaKind.CONCURRENCY) & Q(window=Window.NOW))
                | (~Q(kind=QuotaKind.CONCURRENCY) & ~Q(window=Window.NOW)),
                name=f"{table}_concurrency_has_no_window",
            ),
        ]


class Quota(LimitFields):
    """Of all hard quotas that apply to a call, each must have room; no row means no limit. A member's quota counts the
    calls of all keys that the member made.

    An imposed one is the organization's from its limit template: it stands beside the organization's own of the same
    kind, and its admins cannot change it.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="quotas")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas")
    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas")
    member = models.ForeignKey(Member, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas")
    is_imposed = models.BooleanField(default=False, db_default=False)
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.CheckConstraint(
                condition=(Q(project=None) & Q(api_key=None))
                | (Q(project=None) & Q(member=None))
                | (Q(api_key=None) & Q(member=None)),
                name="quota_has_at_most_one_scope",
            ),
            *LimitFields.constraints("quota"),
            models.CheckConstraint(
                condition=Q(is_imposed=False) | Q(project=None, api_key=None, member=None),
                name="quota_imposed_on_the_organization",
            ),
            models.UniqueConstraint(
                fields=["organization", "project", "api_key", "member", "model", "kind", "window", "is_imposed"],
                nulls_distinct=False,
                name="quota_once_per_scope_kind_window",
            ),
        ]

"""Allowed use in a window, of an organization, one of its projects or one API key."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.api_keys.models import ApiKey
from portal.organizations.models import Organization, Project


class QuotaKind(models.TextChoices):
    REQUESTS = "requests", "Requests"
    TOKENS = "tokens", "Tokens"
    SPEND = "spend", "Spend"
    CONCURRENCY = "concurrency", "Requests at the same time"


class Window(models.TextChoices):
    """A minute is the last 60 s; a day and a month are the calendar's, in the organization's time zone."""

    MINUTE = "minute", "per minute"
    DAY = "day", "per day"
    MONTH = "month", "per month"
    NOW = "now", "at any moment"


class Quota(models.Model):
    """`limit` counts requests, tokens (prompt and completion) or, for spend, nano-units of the currency.

    Of all quotas that apply to a call, each must have room. Zero refuses everything; no row means no limit.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="quotas")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas")
    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="quotas")
    kind = models.CharField(max_length=12, choices=QuotaKind.choices)
    window = models.CharField(max_length=8, choices=Window.choices)
    limit = models.BigIntegerField(validators=[MinValueValidator(0)])
    changed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.CheckConstraint(condition=Q(project=None) | Q(api_key=None), name="quota_has_one_scope"),
            models.CheckConstraint(condition=Q(limit__gte=0), name="quota_limit_not_negative"),
            models.CheckConstraint(
                condition=(Q(kind=QuotaKind.CONCURRENCY) & Q(window=Window.NOW))
                | (~Q(kind=QuotaKind.CONCURRENCY) & ~Q(window=Window.NOW)),
                name="quota_concurrency_has_no_window",
            ),
            models.UniqueConstraint(
                fields=["organization", "project", "api_key", "kind", "window"],
                nulls_distinct=False,
                name="quota_once_per_scope_kind_window",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.limit} {self.get_kind_display().lower()} {self.get_window_display()}"

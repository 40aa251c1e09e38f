"""Alerts: the rules that watch an organization's money and calls, what they found, and to whom it was told."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from portal.alerts.kinds import BudgetWindow, DeliveryState, RuleKind
from portal.api_keys.models import ApiKey
from portal.organizations.models import Organization, Project


class AlertRule(models.Model):
    """What is watched. Which fields count depends on the kind:

    - budget: spend of the organization, a project or a key in a `window`, at each percentage of `amount_nano` that
      `thresholds` names;
    - credit: available credit below `amount_nano`;
    - spend_anomaly: an hour that cost more than `amount_nano` and `thresholds[0]` percent of an ordinary hour;
    - failures: in 15 minutes, more than `thresholds[0]` percent of at least 20 calls failed;
    - soft_limit: a call went through although a limit in soft mode had no room. Made with the first such limit.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="alert_rules")
    kind = models.CharField(max_length=15, choices=RuleKind.choices)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    window = models.CharField(max_length=5, choices=BudgetWindow.choices, blank=True)
    amount_nano = models.BigIntegerField(null=True, blank=True)
    thresholds = ArrayField(models.PositiveIntegerField(), default=list, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.CheckConstraint(condition=Q(project=None) | Q(api_key=None), name="alert_rule_has_one_scope"),
            models.CheckConstraint(
                condition=(Q(kind=RuleKind.BUDGET) & ~Q(window="")) | (~Q(kind=RuleKind.BUDGET) & Q(window="")),
                name="alert_rule_budget_has_a_window",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=[RuleKind.FAILURES, RuleKind.SOFT_LIMIT]) | Q(amount_nano__gt=0),
                name="alert_rule_needs_an_amount",
            ),
        ]

    def __str__(self) -> str:
        return self.get_kind_display()


class Alert(models.Model):
    """What a rule found: at most once for each threshold in a window. `facts` is what mails and webhooks tell."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="alerts")
    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="alerts")
    threshold = models.PositiveIntegerField(default=0)
    window_start = models.DateTimeField()
    event_id = models.UUIDField(unique=True, default=uuid.uuid4)
    title = models.CharField(max_length=200)
    facts = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)
    mailed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "portal"
        indexes = [models.Index(fields=["organization", "-id"], name="alert_by_organization")]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "threshold", "window_start"], name="alert_once_per_threshold_and_window"
            )
        ]

    def __str__(self) -> str:
        return self.title


class WebhookEndpoint(models.Model):
    """Where an organization wants its events sent. Secrets are sealed: they sign, so a digest would not do."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="webhook_endpoints")
    url = models.URLField(max_length=500)
    description = models.CharField(max_length=100, blank=True)
    sealed_secret = models.TextField()
    # Signs beside the new one until then, so that receivers can be changed without a gap.
    sealed_previous_secret = models.TextField(blank=True)
    previous_works_until = models.DateTimeField(null=True, blank=True)
    is_enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"

    def __str__(self) -> str:
        return self.url


class WebhookDelivery(models.Model):
    """One event for one endpoint. `body` is the exact text that is signed and sent, however often."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    event_id = models.UUIDField()
    event_type = models.CharField(max_length=40)
    body = models.TextField()
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    last_status = models.PositiveSmallIntegerField(null=True, blank=True)
    last_error = models.CharField(max_length=200, blank=True)
    last_duration_ms = models.PositiveIntegerField(null=True, blank=True)
    last_attempt_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        verbose_name_plural = "webhook deliveries"
        indexes = [
            models.Index(fields=["organization", "-id"], name="delivery_by_organization"),
            models.Index(fields=["next_attempt_at"], condition=Q(state=DeliveryState.PENDING), name="delivery_waiting"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "event_id"], name="delivery_once_per_endpoint_and_event")
        ]

    def __str__(self) -> str:
        return f"{self.event_type} to {self.endpoint}"

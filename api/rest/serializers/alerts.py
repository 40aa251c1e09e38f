"""Alert rules, alerts, webhooks and deliveries as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.rest.serializers.money import NanoField
from portal.alerts.forms import CHOICES
from portal.alerts.kinds import DeliveryState
from portal.plain_text import refuse_invisible


class AlertRuleSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    window = serializers.CharField(help_text="day, week or month of a budget; else empty.")
    amount = NanoField(source="amount_nano", allow_null=True)
    thresholds = serializers.ListField(child=serializers.IntegerField(), help_text="Percentages.")
    project = serializers.SlugField(source="project.slug", default=None)
    api_key_id = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()


class NewAlertRuleSerializer(serializers.Serializer[Any]):
    what = serializers.ChoiceField(list(CHOICES.items()))
    amount = serializers.CharField(
        required=False, allow_blank=True, default="", help_text="Such as 100.00; not for `failures:`."
    )
    thresholds = serializers.ListField(child=serializers.IntegerField(min_value=1), required=False, default=list)
    scope = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        help_text="Empty for the organization; `project:SLUG` or `api_key:ID`.",
    )


class AlertSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    event_id = serializers.UUIDField(help_text="The `webhook-id` under which it was sent.")
    kind = serializers.CharField(source="rule.kind")
    rule_id = serializers.IntegerField()
    title = serializers.CharField()
    facts = serializers.JSONField()
    created_at = serializers.DateTimeField()


class WebhookSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True)
    url = serializers.CharField(max_length=500)
    description = serializers.CharField(required=False, allow_blank=True, max_length=100, validators=[refuse_invisible])
    is_enabled = serializers.BooleanField(required=False)
    created_at = serializers.DateTimeField(read_only=True)


class WebhookChangeSerializer(WebhookSerializer):
    """Only what is sent is changed."""

    url = serializers.CharField(max_length=500, required=False)


class IssuedWebhookSerializer(WebhookSerializer):
    secret = serializers.CharField(read_only=True, help_text="Shown in this answer only.")


class DeliverySerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    webhook_id = serializers.IntegerField(source="endpoint_id")
    event_id = serializers.UUIDField()
    event_type = serializers.CharField()
    state = serializers.ChoiceField(DeliveryState.choices)
    attempts = serializers.IntegerField()
    last_status = serializers.IntegerField(allow_null=True)
    last_error = serializers.CharField()
    last_attempt_at = serializers.DateTimeField(allow_null=True)
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()


class DeliveryDetailSerializer(DeliverySerializer):
    body = serializers.CharField(help_text="The exact text that is signed and sent.")


class DeliveryQuery(serializers.Serializer[Any]):
    webhook_id = serializers.IntegerField(required=False, default=None)
    state = serializers.ChoiceField(DeliveryState.choices, required=False, default="")

"""JSON shapes of the management API."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from billing.money import to_decimal


class ApiKeySerializer(serializers.Serializer[Any]):
    """A key as it may be shown: never its secret."""

    id = serializers.IntegerField(read_only=True)
    name = serializers.CharField(max_length=100)
    project = serializers.SlugField(source="project.slug")
    prefix = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    revoked_at = serializers.DateTimeField(read_only=True)
    last_used_at = serializers.DateTimeField(read_only=True)


class IssuedKeySerializer(ApiKeySerializer):
    secret = serializers.CharField(read_only=True, help_text="Shown in this answer only; it is not stored.")


class UsageRecordSerializer(serializers.Serializer[Any]):
    request_id = serializers.UUIDField()
    model = serializers.CharField()
    protocol = serializers.CharField()
    is_stream = serializers.BooleanField()
    project_id = serializers.IntegerField(allow_null=True)
    api_key_id = serializers.IntegerField(allow_null=True)
    end_user = serializers.CharField()
    status = serializers.CharField()
    finish_reason = serializers.CharField()
    error_code = serializers.CharField()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    prompt_tokens = serializers.IntegerField(help_text="Cached ones included.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField(help_text="Reasoning ones included.")
    reasoning_tokens = serializers.IntegerField()
    ttft_ms = serializers.FloatField(allow_null=True)
    duration_ms = serializers.FloatField(allow_null=True)
    is_estimated = serializers.BooleanField()
    cost = serializers.SerializerMethodField(help_text="Exact decimal amount, as text.")

    def get_cost(self, record: Any) -> str:
        return f"{to_decimal(record.cost_nano):f}"


class UsagePageSerializer(serializers.Serializer[Any]):
    records = UsageRecordSerializer(many=True)
    next = serializers.CharField(allow_null=True, help_text="Pass it as `after` for the next, older page.")


class UsageQuerySerializer(serializers.Serializer[Any]):
    after = serializers.CharField(required=False)
    limit = serializers.IntegerField(required=False, default=50, min_value=1, max_value=500)
    project_id = serializers.IntegerField(required=False)
    api_key_id = serializers.IntegerField(required=False)
    model = serializers.CharField(required=False, default="")
    status = serializers.ChoiceField(["started", "completed", "cancelled", "failed"], required=False, default="")
    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)


class ModelSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    display_name = serializers.CharField()
    description = serializers.CharField()
    context_tokens = serializers.IntegerField()
    default_max_output_tokens = serializers.IntegerField()
    max_output_tokens = serializers.IntegerField()

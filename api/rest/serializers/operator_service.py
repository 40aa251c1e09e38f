"""How the service runs, what it costs, what agrees and what is kept; operator keys. As JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.rest.serializers.access import AuditEventSerializer, AuditQuery, ReasonField
from api.rest.serializers.money import NanoField
from billing.reconciliation.comparison import Comparison
from portal.audit.selectors import SERVICE_SUBJECTS
from portal.operations.selectors import GROUPS, RANGES


class OperationsQuery(serializers.Serializer[Any]):
    range = serializers.ChoiceField(list(RANGES), required=False, default="15m")
    group = serializers.ChoiceField(list(GROUPS), required=False, default="model")
    model = serializers.CharField(required=False, default="")
    deployment = serializers.CharField(required=False, default="", help_text="Id.")
    organization = serializers.CharField(required=False, default="", help_text="Slug.")


class OperationsSerializer(serializers.Serializer[Any]):
    """Times are seconds since 1970, latencies seconds; each series has a value for each of `times`."""

    range = serializers.CharField()
    step_s = serializers.IntegerField()
    now = serializers.IntegerField()
    times = serializers.ListField(child=serializers.IntegerField())
    ttft = serializers.JSONField(help_text="Percentiles of the time to the first token.")
    itl = serializers.JSONField(help_text="Of the time between tokens.")
    e2e = serializers.JSONField(help_text="Of whole calls.")
    throughput = serializers.JSONField(help_text="Per second: output, input, cached, requests.")
    context_held = serializers.JSONField(help_text="Tokens of context in the KV cache at once, on average.")
    failures = serializers.JSONField(help_text="Counts by class.")
    gauges = serializers.JSONField(help_text="Pages in use, running, waiting, streams, prefix hits, acceptance.")
    refusals = serializers.JSONField(help_text="Counts by reason.")
    present = serializers.JSONField(help_text="Now, added up over deployments.")
    groups = serializers.JSONField(
        help_text="Sums of each of the group asked for; `context_share`: its part of all token-seconds in the KV cache."
    )
    sums = serializers.JSONField(help_text="Sums of the range.")


class CapacityQuery(serializers.Serializer[Any]):
    tokens_per_s = serializers.DecimalField(
        required=False, max_digits=12, decimal_places=2, help_text="In place of what was measured."
    )
    gpus = serializers.IntegerField(required=False, help_text="Of a deployment; 1.")
    gpu_hour = serializers.DecimalField(required=False, max_digits=10, decimal_places=4, help_text="Price; 2.00.")
    load = serializers.IntegerField(required=False, help_text="Percent of the paid time that GPUs work; 70.")


class EconomicsSerializer(serializers.Serializer[Any]):
    """Of one model. Amounts are per million output tokens; null where nothing was measured or sold."""

    model = serializers.CharField()
    measured_tokens_per_s = serializers.DecimalField(
        source="measured.tokens_per_s", default=None, max_digits=14, decimal_places=1
    )
    measured_at = serializers.DateTimeField(source="measured.hour", default=None)
    output_tokens = serializers.IntegerField(source="demand.output_tokens", help_text="Sold in the last 30 days.")
    revenue = NanoField(source="revenue_per_million_nano", allow_null=True)
    cost = NanoField(source="made.cost_per_million_nano", allow_null=True, default=None)
    margin = NanoField(source="margin_nano", allow_null=True)
    tokens_per_gpu_month = serializers.IntegerField(source="made.tokens_per_gpu_month", default=None)
    gpus_needed = serializers.IntegerField(allow_null=True, help_text="For the demand of the last 30 days.")


class CapacitySerializer(serializers.Serializer[Any]):
    data = EconomicsSerializer(many=True)  # type: ignore[assignment]  # a field of this name, as pages have


class CountsSerializer(serializers.Serializer[Any]):
    """Calls that reached an engine, by how record and receipt agreed."""

    total = serializers.IntegerField()
    equal = serializers.IntegerField()
    differ = serializers.IntegerField()
    unfinished = serializers.IntegerField()
    engine_only = serializers.IntegerField()
    gateway_only = serializers.IntegerField()
    pending = serializers.IntegerField()
    unmatched = serializers.IntegerField(help_text="Neither equal nor repaired.")
    raw_percent = serializers.FloatField(help_text="Of the calls with two accounts, those that agreed at first.")
    strict_percent = serializers.FloatField(help_text="The same of all calls.")
    repaired_percent = serializers.FloatField(help_text="Of all calls, those that agree after repairs.")


class DayRateSerializer(CountsSerializer):
    day = serializers.DateField()


class OrganizationRateSerializer(CountsSerializer):
    organization = serializers.CharField(allow_null=True, help_text="Slug; null: nobody we know.")


class TokensSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField(source="prompt_tokens", help_text="Cached ones included.")
    cached_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField(source="completion_tokens", help_text="Reasoning included.")
    reasoning_tokens = serializers.IntegerField()


class AccountSerializer(serializers.Serializer[Any]):
    """What one side says of a call."""

    status = serializers.CharField()
    error_code = serializers.CharField()
    tokens = TokensSerializer(source="counts")
    cost = NanoField(source="cost_nano", allow_null=True, help_text="At the price of the record; null: no price known.")


class CorrectionSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField()
    cost = NanoField(source="cost_nano")
    created_at = serializers.DateTimeField()


class MismatchSerializer(serializers.Serializer[Any]):
    """A call with both accounts; null where that side has none."""

    request_id = serializers.UUIDField()
    organization = serializers.CharField(allow_null=True)
    match_class = serializers.CharField()
    is_settled = serializers.BooleanField()
    age_s = serializers.IntegerField()
    currency = serializers.CharField()
    record = AccountSerializer(allow_null=True, help_text="Ours, as it was written.")
    receipt = AccountSerializer(allow_null=True, help_text="The engine's.")
    corrected = AccountSerializer(allow_null=True, help_text="Ours, with its corrections.")
    difference = TokensSerializer(allow_null=True, help_text="The engine's counts less ours.")
    cost_difference = NanoField(allow_null=True)
    repair = serializers.CharField(help_text="adjusted, finished, recorded, or empty: nothing was done.")
    corrections = CorrectionSerializer(many=True)
    note = serializers.CharField(help_text="Why a receipt could not be used.")


def compared(found: Comparison | None) -> dict[str, Any]:
    """The accounts of a mismatch as its serializer takes them."""
    if found is None:
        empty = dict.fromkeys(("record", "receipt", "corrected", "difference", "cost_difference"))
        return {**empty, "currency": "", "repair": "", "corrections": [], "note": ""}
    return {
        **{name: getattr(found, name) for name in ("currency", "record", "receipt", "corrected", "difference", "note")},
        "cost_difference": found.difference_nano,
        "repair": found.repair.value,
        "corrections": found.adjustments,
    }


class CloseSerializer(serializers.Serializer[Any]):
    period = serializers.CharField()
    closed_at = serializers.DateTimeField()
    closed_by = serializers.CharField(source="actor_name")
    calls = serializers.IntegerField()
    equal = serializers.IntegerField()
    unmatched = serializers.IntegerField()
    waiver = serializers.CharField()


class ReconciliationSerializer(serializers.Serializer[Any]):
    """The last 14 days, all together and each; organizations are those with calls that did not agree."""

    all = CountsSerializer()
    days = DayRateSerializer(many=True)
    organizations = OrganizationRateSerializer(many=True)
    mismatches = MismatchSerializer(many=True)
    closes = CloseSerializer(many=True)


class NewCloseSerializer(serializers.Serializer[Any]):
    period = serializers.CharField(max_length=7, help_text="YYYY-MM, in UTC.")
    waiver = ReasonField(help_text="Why unmatched calls are accepted.")


class KeptSerializer(serializers.Serializer[Any]):
    what = serializers.CharField()
    how_long = serializers.CharField()
    setting = serializers.CharField(help_text="That says so; empty: none.")


class OldMonthsSerializer(serializers.Serializer[Any]):
    """A part of the usage records that is old enough to go."""

    name = serializers.CharField()
    until = serializers.DateTimeField(source="end")
    records = serializers.IntegerField()
    cost = NanoField(source="cost_nano")
    size_bytes = serializers.IntegerField()
    blockers = serializers.ListField(child=serializers.CharField(), help_text="Why it must stay; empty: it goes.")


class GoneMonthSerializer(serializers.Serializer[Any]):
    period = serializers.CharField()
    records = serializers.IntegerField()
    cost = NanoField(source="cost_nano")
    retired_at = serializers.DateTimeField()
    retired_by = serializers.CharField(source="actor_name", help_text="Empty: the schedule.")


class RetentionSerializer(serializers.Serializer[Any]):
    kept = KeptSerializer(many=True)
    old = OldMonthsSerializer(many=True)
    gone = GoneMonthSerializer(many=True)


class OperatorKeySerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    may_change = serializers.BooleanField(help_text="Else it only reads.")
    prefix = serializers.CharField()
    networks = serializers.ListField(child=serializers.CharField(), source="allowed_networks")
    created_by = serializers.EmailField(source="created_by.email")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


class ServiceAuditQuery(AuditQuery):
    about = serializers.ChoiceField(list(SERVICE_SUBJECTS), required=False, allow_blank=True, default="")
    organization = serializers.CharField(required=False, default="", help_text="Slug; not sent: everything.")


class ServiceAuditEventSerializer(AuditEventSerializer):
    organization = serializers.CharField(
        source="organization.slug", default=None, help_text="Slug; null: it concerned the service."
    )

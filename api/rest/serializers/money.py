"""Usage, prices, credit, invoices, limits and models as JSON. Amounts are exact decimals, written as text."""

from __future__ import annotations

from typing import Any

from django.utils import translation
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from billing.accounts.services import LANGUAGES
from billing.money import from_minor, to_decimal
from portal.billing_pages.wording import reason_text
from portal.plain_text import refuse_invisible

# Groups that one answer about sums of usage gives by themselves.
GROUPS_LIMIT = 1000


@extend_schema_field(OpenApiTypes.DECIMAL)
class NanoField(serializers.Field[int, str, str, int]):
    """Nano-units as decimal text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(read_only=True, **kwargs)

    def to_representation(self, value: int) -> str:
        return f"{to_decimal(value):f}"


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
    cost = NanoField(source="cost_nano")


class UsageQuery(serializers.Serializer[Any]):
    after = serializers.CharField(required=False)
    limit = serializers.IntegerField(required=False, default=50, min_value=1, max_value=500)
    project_id = serializers.IntegerField(required=False)
    api_key_id = serializers.IntegerField(required=False)
    model = serializers.CharField(required=False, allow_blank=True, default="")
    status = serializers.ChoiceField(["started", "completed", "cancelled", "failed"], required=False, default="")
    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)


class UsageSummaryQuery(serializers.Serializer[Any]):
    """Sums over [start, end); days and months are those of the organization's zone."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    group_by = serializers.ChoiceField(
        ["total", "model", "project", "api_key", "status", "protocol", "end_user", "hour", "day", "month"],
        required=False,
        default="total",
    )
    limit = serializers.IntegerField(
        required=False,
        default=GROUPS_LIMIT,
        min_value=1,
        max_value=GROUPS_LIMIT,
        help_text="So many groups, those of the highest cost; hours, days and months are all given.",
    )


class UsageSumSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="The group: a model, an id, a day.")
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField()
    cost = NanoField(source="cost_nano")


class UsageSumsSerializer(serializers.Serializer[Any]):
    data = UsageSumSerializer(  # type: ignore[assignment]  # a field of this name, as pages have
        source="rows", many=True, help_text="By key."
    )
    rest = UsageSumSerializer(allow_null=True, help_text="All groups beyond the limit together; its key is empty.")
    rest_count = serializers.IntegerField(help_text="How many groups `rest` stands for.")


class ModelSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    display_name = serializers.CharField()
    description = serializers.CharField()
    context_tokens = serializers.IntegerField()
    default_max_output_tokens = serializers.IntegerField()
    max_output_tokens = serializers.IntegerField()


class PriceSerializer(serializers.Serializer[Any]):
    """Amounts per million tokens."""

    model = serializers.CharField()
    currency = serializers.CharField()
    input = NanoField(source="input_nano")
    cached_input = NanoField(source="cached_input_nano", allow_null=True, help_text="null: as input.")
    output = NanoField(source="output_nano")
    effective_from = serializers.DateTimeField()
    is_own = serializers.SerializerMethodField(help_text="Agreed with this organization; else the list price.")

    def get_is_own(self, price: Any) -> bool:
        return price.organization_id is not None


class BookedForField(serializers.CharField):
    """Why billing booked it: its own codes in English words, what a person typed as it is."""

    def to_representation(self, value: Any) -> str:
        with translation.override("en"):
            return reason_text(value)


class GrantSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="grant_id")
    kind = serializers.CharField()
    reason = BookedForField()
    amount = NanoField(source="amount_nano")
    remaining = NanoField(source="remaining_nano")
    expires_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()


class CreditSerializer(serializers.Serializer[Any]):
    currency = serializers.CharField()
    available = NanoField(source="available_nano", help_text="What a new call may hold.")
    grants = GrantSerializer(many=True)


class LedgerEntrySerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="entry_id")
    kind = serializers.CharField()
    reason = BookedForField()
    amount = NanoField(source="amount_nano")
    created_at = serializers.DateTimeField()


@extend_schema_field(OpenApiTypes.DECIMAL)
class MinorField(serializers.Field[int, str, str, int]):
    """Whole cents as decimal text, in the invoice's currency."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(read_only=True, **kwargs)

    def get_attribute(self, instance: Any) -> Any:
        amount = super().get_attribute(instance) or 0
        return from_minor(amount, getattr(instance, "currency", None) or instance.invoice.currency)

    def to_representation(self, value: int) -> str:
        return f"{to_decimal(value).normalize():f}"


class InvoiceSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    number = serializers.CharField(allow_null=True, help_text="null while it is a draft.")
    period = serializers.CharField(help_text="YYYY-MM in the billing zone.")
    status = serializers.CharField()
    currency = serializers.CharField()
    subtotal = MinorField(source="subtotal_minor")
    credit = MinorField(source="credit_minor")
    tax = MinorField(source="tax_minor")
    total = MinorField(source="total_minor")
    finalized_at = serializers.DateTimeField(allow_null=True)
    due_at = serializers.DateTimeField(allow_null=True)
    paid_at = serializers.DateTimeField(allow_null=True)


class InvoiceLineSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    description = serializers.CharField()
    model = serializers.CharField()
    token_kind = serializers.CharField()
    tokens = serializers.IntegerField()
    unit_price = NanoField(source="unit_price_nano", help_text="Per million tokens.")
    amount_exact = NanoField(source="amount_nano")
    amount = MinorField(source="amount_minor")


class InvoiceDetailSerializer(InvoiceSerializer):
    lines = InvoiceLineSerializer(many=True, source="described_lines")


class BillingDetailsSerializer(serializers.Serializer[Any]):
    """Whom the next invoices are addressed to. Only what is sent is changed."""

    email = serializers.EmailField(required=False)
    legal_name = serializers.CharField(required=False, allow_blank=True, max_length=200, validators=[refuse_invisible])
    address_line1 = serializers.CharField(
        required=False, allow_blank=True, max_length=200, validators=[refuse_invisible]
    )
    address_line2 = serializers.CharField(
        required=False, allow_blank=True, max_length=200, validators=[refuse_invisible]
    )
    postal_code = serializers.CharField(required=False, allow_blank=True, max_length=32, validators=[refuse_invisible])
    city = serializers.CharField(required=False, allow_blank=True, max_length=120, validators=[refuse_invisible])
    region = serializers.CharField(required=False, allow_blank=True, max_length=120, validators=[refuse_invisible])
    country = serializers.CharField(required=False, allow_blank=True, max_length=2)
    tax_id = serializers.CharField(required=False, allow_blank=True, max_length=64, validators=[refuse_invisible])
    language = serializers.ChoiceField(list(LANGUAGES.items()), required=False, help_text="Of invoices and reminders.")

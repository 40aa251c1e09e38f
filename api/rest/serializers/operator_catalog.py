"""Models, deployments and prices as an operator sees and sets them, as JSON. Amounts are per million tokens."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rest_framework import serializers

from api.rest.serializers.money import BookedForField, NanoField, PriceSerializer
from api.rest.serializers.operator_organizations import KeyField
from portal.plain_text import refuse_invisible


class CatalogPriceSerializer(PriceSerializer):
    """A version of a price; `organization` is whose it is, where it is one organization's."""

    is_own = None  # type: ignore[assignment]  # takes the inherited field away
    price_id = serializers.IntegerField()
    organization = serializers.SerializerMethodField()
    cache_write = NanoField(source="cache_write_nano", allow_null=True, help_text="null: as input.")
    reasoning = NanoField(source="reasoning_nano", allow_null=True, help_text="null: as output.")
    minimum = NanoField(source="minimum_nano", help_text="Of a request.")
    effective_until = serializers.DateTimeField(allow_null=True)
    discount_percent = serializers.SerializerMethodField(help_text="Off the list price that it came from.")

    def get_organization(self, price: Any) -> str | None:
        whose: dict[int, str] = self.context.get("slugs", {})
        return None if price.organization_id is None else whose.get(price.organization_id)

    def get_discount_percent(self, price: Any) -> str:
        return f"{Decimal(price.discount_basis_points) / 100:f}"


class CatalogModelSerializer(serializers.Serializer[Any]):
    """Only what is sent is changed; the name never is."""

    id = serializers.IntegerField(read_only=True)
    name = serializers.CharField(max_length=100, help_text="What callers write as model.")
    display_name = serializers.CharField(max_length=100)
    description = serializers.CharField(required=False, allow_blank=True)
    context_tokens = serializers.IntegerField(min_value=1)
    default_max_output_tokens = serializers.IntegerField(min_value=1, help_text="Where the caller sets no limit.")
    max_output_tokens = serializers.IntegerField(min_value=1)
    is_published = serializers.BooleanField(required=False, help_text="Callers see it and may call it.")
    created_at = serializers.DateTimeField(read_only=True)
    price = serializers.SerializerMethodField(help_text="The list price in force; null: none.")

    def get_price(self, model: Any) -> dict[str, Any] | None:
        price = self.context["prices"].get(model.name)
        return None if price is None else dict(CatalogPriceSerializer(price).data)


class DeploymentSerializer(serializers.Serializer[Any]):
    """Only what is sent is changed. `state`, `error` and `facts` are what it last said of itself."""

    id = serializers.IntegerField(read_only=True)
    model = serializers.CharField(read_only=True)
    kind = serializers.ChoiceField(["engine", "openai_compatible"], required=False)
    address = serializers.CharField(max_length=200, help_text="host:port of an engine, or an upstream's base URL.")
    upstream_model = serializers.CharField(
        max_length=200, required=False, allow_blank=True, help_text="The model's name there; empty: the same."
    )
    credential_variable = serializers.CharField(
        max_length=100, required=False, allow_blank=True, help_text="Environment variable with the upstream's key."
    )
    weight = serializers.IntegerField(required=False, min_value=1, max_value=32767)
    is_enabled = serializers.BooleanField(required=False, help_text="Gets traffic.")
    state = serializers.SerializerMethodField(help_text="healthy, failing or unknown.")
    checked_at = serializers.SerializerMethodField()
    error_code = serializers.SerializerMethodField()
    error = serializers.SerializerMethodField(help_text="What the engine said itself, in English.")
    facts = serializers.SerializerMethodField(help_text="Engine, version, pages, queue and the like, by name.")

    def _status(self, deployment: Any) -> Any:
        return self.context["statuses"].get(deployment.id)

    def get_state(self, deployment: Any) -> str:
        status = self._status(deployment)
        return "unknown" if status is None else "healthy" if status.is_healthy else "failing"

    def get_checked_at(self, deployment: Any) -> str | None:
        status = self._status(deployment)
        return None if status is None else status.checked_at.isoformat()

    def get_error_code(self, deployment: Any) -> str:
        status = self._status(deployment)
        return "" if status is None else str(status.error_code)

    def get_error(self, deployment: Any) -> str:
        status = self._status(deployment)
        return "" if status is None else str(status.error)

    def get_facts(self, deployment: Any) -> dict[str, Any]:
        status = self._status(deployment)
        return {} if status is None else dict(status.facts)


class NewPriceSerializer(serializers.Serializer[Any]):
    """A list price, or with `organization` that organization's own."""

    input = serializers.CharField(max_length=24, help_text="Such as `0.40`.")
    output = serializers.CharField(max_length=24, help_text="Such as `2.03`.")
    cached_input = serializers.CharField(required=False, allow_blank=True, help_text="Not sent: as input.")
    cache_write = serializers.CharField(required=False, allow_blank=True, help_text="Not sent: as input.")
    reasoning = serializers.CharField(required=False, allow_blank=True, help_text="Not sent: as output.")
    minimum = serializers.CharField(required=False, allow_blank=True, help_text="What a request costs at least.")
    currency = serializers.CharField(required=False, allow_blank=True, help_text="Of a list price.")
    organization = serializers.CharField(required=False, allow_blank=True, help_text="Slug; not sent: for everyone.")
    effective_from = serializers.DateTimeField(required=False, allow_null=True, help_text="Not sent: now.")
    effective_until = serializers.DateTimeField(required=False, allow_null=True, help_text="Not sent: for good.")
    seen_price_id = serializers.IntegerField(
        required=False,
        min_value=0,
        help_text="The highest `price_id` that you know. Where the same price was set since, nothing is set. Not sent:"
        " whatever was set is replaced.",
    )


class ChangeSerializer(serializers.Serializer[Any]):
    """Of one organization: what its calls of last month cost, and what they would have cost."""

    organization = serializers.CharField(source="tenant.slug")
    requests = serializers.IntegerField(source="change.requests")
    billed = NanoField(source="change.billed_nano")
    proposed = NanoField(source="change.proposed_nano")


class PricePreviewSerializer(serializers.Serializer[Any]):
    currency = serializers.CharField()
    requests = serializers.IntegerField(source="sum.requests")
    billed = NanoField(source="sum.billed_nano")
    proposed = NanoField(source="sum.proposed_nano")
    organizations = ChangeSerializer(many=True, help_text="Those that it would move most.")
    others = serializers.IntegerField(help_text="Organizations beyond these.")


class NewDiscountSerializer(serializers.Serializer[Any]):
    organization = serializers.CharField(help_text="Slug.")
    model = serializers.CharField(required=False, allow_blank=True, default="", help_text="Not sent: all models.")
    percent = serializers.CharField(max_length=6, help_text="Off the list price, such as `12.5`.")
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])
    effective_until = serializers.DateTimeField(required=False, allow_null=True, help_text="Not sent: for good.")
    key = KeyField()


class DiscountEndSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class DiscountSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="discount.id")
    organization = serializers.CharField(source="tenant.slug")
    model = serializers.CharField(source="discount.model", help_text="Empty: all models.")
    percent = serializers.CharField(source="discount.percent")
    reason = BookedForField(source="discount.reason")
    effective_from = serializers.DateTimeField(source="discount.effective_from")
    effective_until = serializers.DateTimeField(source="discount.until", allow_null=True)


class DiscountPreviewSerializer(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    billed = NanoField(source="billed_nano")
    proposed = NanoField(source="proposed_nano")


class TierSerializer(serializers.Serializer[Any]):
    from_tokens = serializers.IntegerField(min_value=1, max_value=10**18 - 1, help_text="In a month.")
    percent = serializers.DecimalField(
        max_digits=5,
        decimal_places=2,
        min_value=Decimal("0.01"),
        max_value=Decimal(100),
        help_text="Off, the next month.",
    )


class TiersSerializer(serializers.Serializer[Any]):
    tiers = serializers.ListField(child=TierSerializer(), max_length=20)


class TierChangeSerializer(ChangeSerializer):
    tokens = serializers.IntegerField(help_text="In the month before.")
    percent = serializers.CharField()


class TiersPreviewSerializer(serializers.Serializer[Any]):
    billed = NanoField(source="billed_nano")
    proposed = NanoField(source="proposed_nano")
    organizations = TierChangeSerializer(many=True)
    others = serializers.IntegerField()

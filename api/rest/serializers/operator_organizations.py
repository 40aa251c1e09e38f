"""Organizations and their money as an operator sees them, as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.rest.serializers.access import OrganizationSerializer
from api.rest.serializers.money import GrantSerializer, NanoField
from billing.money import from_minor, to_decimal
from portal.operator.tenants import state_of
from portal.plain_text import refuse_invisible


def minor_text(amount_minor: int, currency: str) -> str:
    """Whole cents as decimal text."""
    return f"{to_decimal(from_minor(amount_minor, currency)).normalize():f}"


class KeyField(serializers.UUIDField):
    """One is made where none is sent."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("required", False)
        kwargs.setdefault("help_text", "Names the act: a repeat with it does nothing more.")
        super().__init__(**kwargs)


class OverviewSerializer(serializers.Serializer[Any]):
    organizations = serializers.IntegerField(source="organization_count")
    calls = serializers.IntegerField(help_text="That ended in the last seven days.")
    mismatches = serializers.IntegerField(help_text="Of the last seven days: neither equal nor repaired.")
    held = NanoField(source="held_nano", help_text="By running calls.")


class TenantSerializer(OrganizationSerializer):
    members = serializers.IntegerField(source="member_count")
    currency = serializers.SerializerMethodField()
    available = serializers.SerializerMethodField(help_text="What a new call may hold.")
    spent_this_month = serializers.SerializerMethodField(help_text="Of the month in UTC, some seconds behind.")
    state = serializers.SerializerMethodField(help_text="active, suspended, closing (it can be restored) or closed.")

    def _balance(self, tenant: Any) -> Any:
        return self.context["balances"].get(tenant.id)

    def get_currency(self, tenant: Any) -> str | None:
        balance = self._balance(tenant)
        return balance and str(balance.currency)

    def get_available(self, tenant: Any) -> str | None:
        balance = self._balance(tenant)
        return balance and f"{to_decimal(balance.available_nano):f}"

    def get_spent_this_month(self, tenant: Any) -> str:
        return f"{to_decimal(self.context['spent'].get(tenant.id, 0)):f}"

    def get_state(self, tenant: Any) -> str:
        return str(state_of(tenant).value)


class TenantDetailSerializer(OrganizationSerializer):
    """With the account behind it, as `account`, `balance` and `grants` of the context."""

    members = serializers.IntegerField(source="member_count")
    currency = serializers.CharField(source="account.currency")
    credit_limit = NanoField(source="account.credit_limit_nano", help_text="How far it may owe; zero is prepaid.")
    balance = NanoField(source="balance.balance_nano")
    held = NanoField(source="balance.held_nano", help_text="By running calls.")
    available = NanoField(source="balance.available_nano", help_text="What a new call may hold.")
    grants = GrantSerializer(many=True)


class NewCreditSerializer(serializers.Serializer[Any]):
    amount = serializers.CharField(max_length=24, help_text="In the account's currency, such as `25.00`.")
    reason = serializers.CharField(
        max_length=300, validators=[refuse_invisible], help_text="The organization sees it in its ledger."
    )
    key = KeyField()


class TermsSerializer(serializers.Serializer[Any]):
    credit_limit = serializers.CharField(max_length=24, help_text="How far it may owe; `0` is prepaid.")
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class SuspensionSerializer(serializers.Serializer[Any]):
    is_suspended = serializers.BooleanField()
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class RefundSerializer(serializers.Serializer[Any]):
    amount = serializers.SerializerMethodField()
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()

    def get_amount(self, refund: Any) -> str:
        return minor_text(refund.amount_minor, refund.top_up.currency)


class PurchaseSerializer(serializers.Serializer[Any]):
    """A paid purchase of credit, and what of it is unspent."""

    top_up_id = serializers.IntegerField(source="top_up.id")
    currency = serializers.CharField(source="top_up.currency")
    amount = serializers.SerializerMethodField()
    refundable = serializers.SerializerMethodField()
    refunds = RefundSerializer(many=True)

    def get_amount(self, row: Any) -> str:
        return minor_text(row.top_up.amount_minor, row.top_up.currency)

    def get_refundable(self, row: Any) -> str:
        return minor_text(row.left_minor, row.top_up.currency)


class NewRefundSerializer(serializers.Serializer[Any]):
    amount = serializers.CharField(max_length=24)
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])
    key = KeyField()


class FeeSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    quantity = serializers.IntegerField()
    unit_amount = serializers.SerializerMethodField(help_text="A month, each.")
    currency = serializers.CharField()
    starts_on = serializers.DateField()
    ends_on = serializers.DateField(allow_null=True, help_text="First day without it.")

    def get_unit_amount(self, fee: Any) -> str:
        return minor_text(fee.unit_amount_minor, fee.currency)


class NewFeeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=120, help_text="As the invoice calls it.")
    quantity = serializers.IntegerField(required=False, default=1, min_value=1, max_value=1_000_000)
    unit_amount = serializers.CharField(max_length=24, help_text="A month, each, in the account's currency.")
    starts_on = serializers.DateField()


class FeeEndSerializer(serializers.Serializer[Any]):
    ends_on = serializers.DateField(help_text="First day without it.")


class ExemptionSerializer(serializers.Serializer[Any]):
    tax_exemption = serializers.CharField(
        allow_blank=True, max_length=40, help_text="Why no tax is charged; stands on invoices. Empty: tax is charged."
    )


class TenantMoneySerializer(serializers.Serializer[Any]):
    currency = serializers.CharField()
    tax_exemption = serializers.CharField()
    purchases = PurchaseSerializer(many=True)
    fees = FeeSerializer(many=True)

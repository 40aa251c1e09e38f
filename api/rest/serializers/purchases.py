"""Purchases of credit, codes, auto-recharge, credit notes and exports as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.rest.serializers.money import MinorField, NanoField
from billing.exports.reports import DIVISIONS


class NewTopUpSerializer(serializers.Serializer[Any]):
    amount = serializers.CharField(max_length=24, help_text="Credit in the account's currency, such as `25.00`.")
    keeps_card = serializers.BooleanField(
        required=False, default=False, help_text="Keep the card for auto-recharge and unpaid invoices."
    )
    key = serializers.UUIDField(required=False, help_text="Names the purchase: a repeat with it opens no second one.")


class TopUpSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    state = serializers.CharField(help_text="open, paid, failed or expired.")
    currency = serializers.CharField()
    amount = MinorField(source="amount_minor")
    tax = MinorField(source="tax_minor")
    url = serializers.CharField(help_text="The page on which a person pays, while it is open.")
    failure = serializers.CharField()
    created_at = serializers.DateTimeField()
    closed_at = serializers.DateTimeField(allow_null=True)


class PromoCodeSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(max_length=60)


class RedeemedSerializer(serializers.Serializer[Any]):
    grant_id = serializers.IntegerField(source="id")
    reason = serializers.CharField()
    amount = NanoField(source="amount_nano")
    expires_at = serializers.DateTimeField(allow_null=True)


class AutoRechargeSerializer(serializers.Serializer[Any]):
    """Amounts are those of the account's currency."""

    is_enabled = serializers.BooleanField(default=False)
    threshold = serializers.CharField(max_length=24, help_text="When less is left than this …")
    amount = serializers.CharField(max_length=24, help_text="… so much is bought, or more to get above the line …")
    monthly_ceiling = serializers.CharField(max_length=24, help_text="… but at most so much in a month.")
    spent_this_month = serializers.CharField(read_only=True)
    paused_at = serializers.DateTimeField(read_only=True, allow_null=True)
    paused_reason = serializers.CharField(read_only=True)


class PaymentPageSerializer(serializers.Serializer[Any]):
    url = serializers.CharField(help_text="For a person, now: cards and receipts.")


class CreditNoteSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    number = serializers.CharField()
    invoice_id = serializers.IntegerField()
    effect = serializers.CharField(help_text="reduces: less to pay; refunds: paid back.")
    reason = serializers.CharField()
    amount = MinorField(source="amount_minor")
    tax = MinorField(source="tax_minor")
    issued_at = serializers.DateTimeField()


class NewExportSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(["usage", "focus", "showback", "chargeback"])
    format = serializers.ChoiceField(["csv", "parquet"])
    period = serializers.CharField(max_length=7, help_text="YYYY-MM in the billing zone.")
    group_by = serializers.ChoiceField(
        list(DIVISIONS), required=False, default="project", help_text="Of showback and chargeback."
    )
    project = serializers.CharField(required=False, allow_blank=True, default="", help_text="Slug; for usage.")
    api_key_id = serializers.IntegerField(required=False, default=None, allow_null=True, help_text="For usage.")
    model = serializers.CharField(required=False, allow_blank=True, default="", help_text="For usage.")
    end_user = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=256, help_text="For usage."
    )


class ExportSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    format = serializers.CharField()
    period = serializers.CharField()
    group_by = serializers.CharField()
    state = serializers.CharField(help_text="queued, running, finished or failed.")
    rows = serializers.IntegerField(source="row_count")
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField()
    error = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True, help_text="The file is there until then.")

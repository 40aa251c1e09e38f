"""Invoices, runs, promo codes, tax rates and payment events as an operator sees them, as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.rest.serializers.money import InvoiceDetailSerializer, InvoiceSerializer, NanoField
from api.rest.serializers.operator_organizations import KeyField, minor_text
from api.rest.serializers.purchases import CreditNoteSerializer
from billing.invoices.runs import Outcome
from portal.plain_text import refuse_invisible

MONTH = r"^\d{4}-(0[1-9]|1[0-2])$"


class MonthQuery(serializers.Serializer[Any]):
    period = serializers.RegexField(MONTH, required=False, help_text="YYYY-MM; the present month if not given.")


class IssuedInvoiceSerializer(InvoiceSerializer):
    organization = serializers.CharField(source="organization.slug")


class IssuedInvoiceDetailSerializer(InvoiceDetailSerializer):
    organization = serializers.CharField(source="organization.slug")
    due = serializers.SerializerMethodField(help_text="What is still to be paid.")
    credit_notes = CreditNoteSerializer(many=True, source="notes")
    is_issued_before_close = serializers.BooleanField(help_text="While its month could still change in reconciliation.")

    def get_due(self, invoice: Any) -> str:
        return minor_text(invoice.due_minor, invoice.currency)


class RunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    period = serializers.CharField()
    is_preview = serializers.BooleanField()
    state = serializers.CharField(help_text="queued, running, finished or failed.")
    percent = serializers.IntegerField()
    started_by = serializers.EmailField(source="started_by.email")
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField()
    outcome = serializers.JSONField(help_text="Counts of what it did; its outcomes say what it did with each account.")


class OutcomeQuery(serializers.Serializer[Any]):
    outcome = serializers.ChoiceField(
        [each.value for each in Outcome], required=False, default="", help_text="One only."
    )
    q = serializers.CharField(required=False, default="", help_text="Part of an organization's name or slug.")
    after = serializers.IntegerField(required=False, min_value=1, help_text="`next` of the page before.")
    limit = serializers.IntegerField(required=False, default=50, min_value=1, max_value=200)


class RunOutcomeSerializer(serializers.Serializer[Any]):
    """What a run did with one account; without an invoice where there was nothing to bill or the month was not over."""

    organization = serializers.CharField(source="organization.slug")
    organization_id = serializers.IntegerField()
    outcome = serializers.ChoiceField([each.value for each in Outcome])
    invoice_id = serializers.IntegerField(allow_null=True)
    number = serializers.CharField(source="invoice.number", default=None, allow_null=True)
    currency = serializers.CharField(source="invoice.currency", default=None, allow_null=True)
    subtotal = serializers.SerializerMethodField(help_text="Before credit and tax.")
    total = serializers.SerializerMethodField(help_text="To pay.")
    reason = serializers.CharField(help_text="Why it failed.")

    def get_subtotal(self, row: Any) -> str | None:
        return row.invoice and minor_text(row.invoice.subtotal_minor, row.invoice.currency)

    def get_total(self, row: Any) -> str | None:
        return row.invoice and minor_text(row.invoice.total_minor, row.invoice.currency)


class NewRunSerializer(serializers.Serializer[Any]):
    period = serializers.RegexField(MONTH, help_text="YYYY-MM in the billing zone.")
    is_preview = serializers.BooleanField(default=True, help_text="Draft the month as it stands; number nothing.")


class MonthSerializer(serializers.Serializer[Any]):
    """A month's invoices in sums."""

    period = serializers.CharField()
    is_closed = serializers.BooleanField(help_text="In reconciliation.")
    states = serializers.DictField(child=serializers.IntegerField(), help_text="Invoices by state.")
    totals = serializers.DictField(child=serializers.CharField(), help_text="By currency, void ones left out.")
    run = RunSerializer(allow_null=True, help_text="The newest run or preview.")


class NewCreditNoteSerializer(serializers.Serializer[Any]):
    amount = serializers.CharField(max_length=24, help_text="Tax included, in the invoice's currency.")
    reason = serializers.CharField(
        max_length=300, validators=[refuse_invisible], help_text="Stands on the credit note."
    )
    key = KeyField()


class PaymentSerializer(serializers.Serializer[Any]):
    reference = serializers.CharField(
        max_length=120, validators=[refuse_invisible], help_text="Such as the bank's; one reference pays once."
    )


class BecauseSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class IssuedCodeSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    code = serializers.CharField()
    description = serializers.CharField()
    amount = NanoField(source="amount_nano")
    currency = serializers.CharField()
    max_redemptions = serializers.IntegerField()
    redeemed = serializers.IntegerField(source="redeemed_count")
    valid_from = serializers.DateTimeField()
    valid_until = serializers.DateTimeField(allow_null=True)
    credit_days = serializers.IntegerField(allow_null=True)
    is_active = serializers.BooleanField()


class NewCodeSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(
        required=False, allow_blank=True, max_length=40, help_text="Not sent: one is made up that nobody can guess."
    )
    description = serializers.CharField(max_length=200, help_text="Stands in the ledger of whoever redeems it.")
    amount = serializers.CharField(max_length=24)
    currency = serializers.CharField(max_length=3)
    max_redemptions = serializers.IntegerField(required=False, default=100, min_value=1, max_value=1_000_000)
    valid_until = serializers.DateField(required=False, allow_null=True, help_text="Redeem before; not sent: no end.")
    credit_days = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=3650, help_text="How long the credit lasts."
    )


class CodeSwitchSerializer(serializers.Serializer[Any]):
    is_active = serializers.BooleanField()


class TaxRateSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True)
    country = serializers.CharField(min_length=2, max_length=2)
    name = serializers.CharField(max_length=40, help_text="As invoices call it.")
    percent = serializers.DecimalField(max_digits=7, decimal_places=4, min_value=0, max_value=99)
    effective_from = serializers.DateField()


class PaymentEventSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    provider = serializers.CharField()
    event_id = serializers.CharField()
    type = serializers.CharField()
    outcome = serializers.CharField()
    note = serializers.CharField()
    attempts = serializers.IntegerField()
    received_at = serializers.DateTimeField()
    worked_at = serializers.DateTimeField(allow_null=True)

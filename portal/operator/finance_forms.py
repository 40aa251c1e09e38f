"""Forms of the operator's pages about money."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from billing.money import MINOR_DIGITS
from portal.amounts import read_nano
from portal.billing_pages.credit_forms import AmountField, MoneyForm
from portal.plain_text import refuse_invisible

CURRENCIES = [(currency, currency) for currency in MINOR_DIGITS]
_DATE = {"type": "date"}


class PromoCodeForm(forms.Form):
    code = forms.CharField(
        required=False,
        max_length=40,
        validators=[refuse_invisible],
        help_text=_("Empty: one is made up that nobody can guess."),
    )
    description = forms.CharField(
        max_length=200, validators=[refuse_invisible], help_text=_("Stands in the ledger of whoever redeems it.")
    )
    amount = AmountField(label=_("Credit"))
    currency = forms.ChoiceField(choices=CURRENCIES)
    max_redemptions = forms.IntegerField(min_value=1, max_value=1_000_000, initial=100, label=_("How many times"))
    valid_until = forms.DateField(
        required=False, label=_("Redeem before"), widget=forms.DateInput(_DATE), help_text=_("Empty: no end.")
    )
    credit_days = forms.IntegerField(
        required=False, min_value=1, max_value=3650, label=_("Credit lasts, days"), help_text=_("Empty: for ever.")
    )

    def clean_amount(self) -> int:
        """In nano-units."""
        return read_nano(self.cleaned_data["amount"])


class TaxRateForm(forms.Form):
    country = forms.CharField(min_length=2, max_length=2, help_text=_("Two letters, such as DE."))
    name = forms.CharField(
        max_length=40, initial="VAT", validators=[refuse_invisible], help_text=_("As invoices call it.")
    )
    percent = forms.DecimalField(min_value=0, max_value=99, max_digits=7, decimal_places=4)
    effective_from = forms.DateField(label=_("From"), widget=forms.DateInput(_DATE))


class FeeForm(MoneyForm):
    name = forms.CharField(max_length=120, validators=[refuse_invisible], help_text=_("As the invoice calls it."))
    quantity = forms.IntegerField(min_value=1, max_value=1_000_000, initial=1)
    unit_amount = AmountField(label=_("Amount a month, each"))
    starts_on = forms.DateField(label=_("From"), widget=forms.DateInput(_DATE))


class FeeEndForm(forms.Form):
    ends_on = forms.DateField(label=_("First day without it"), widget=forms.DateInput(_DATE))


class RefundForm(MoneyForm):
    amount = AmountField()
    reason = forms.CharField(max_length=300, validators=[refuse_invisible])
    key = forms.UUIDField(widget=forms.HiddenInput)


class ExemptionForm(forms.Form):
    tax_exemption = forms.CharField(
        required=False,
        max_length=40,
        validators=[refuse_invisible],
        label=_("Exempt from tax because of"),
        help_text=_("Such as the number of a certificate; stands on invoices. Empty: tax is charged."),
    )


class CreditNoteForm(MoneyForm):
    amount = AmountField(label=_("Amount, tax included"))
    reason = forms.CharField(max_length=300, validators=[refuse_invisible], help_text=_("Stands on the credit note."))
    key = forms.UUIDField(widget=forms.HiddenInput)


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=300, validators=[refuse_invisible])


class PaymentForm(forms.Form):
    """Money that came outside of the provider, for all that is due."""

    reference = forms.CharField(
        max_length=120,
        validators=[refuse_invisible],
        help_text=_("Such as the bank's reference; one reference pays once."),
    )

    def clean_reference(self) -> str:
        return str(self.cleaned_data["reference"]).strip()


def with_amount_due(form: type[MoneyForm], amount_minor: int, currency: str, **initial: Any) -> MoneyForm:
    """A form that proposes all there is."""
    digits = MINOR_DIGITS[currency]
    whole, fraction = divmod(amount_minor, 10**digits)
    text = f"{whole}.{fraction:0{digits}d}" if digits else str(whole)
    return form(initial={"amount": text, **initial}, currency=currency)

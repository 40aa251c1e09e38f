"""Forms that concern what an organization pays, and how."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from billing.accounts.services import LANGUAGES
from billing.exports.models import ExportFormat, ExportKind
from billing.exports.reports import DIVISIONS
from billing.money import MINOR_DIGITS, to_minor
from portal.amounts import read_nano

DIVISION_NAMES = {
    "project": _("Project"),
    "api_key": _("API key"),
    "member": _("Member who made the key"),
    "model": _("Model"),
    "end_user": _("End user"),
}


def read_minor(text: str, currency: str) -> int:
    """`"1,250.00"` in whole cents; finer amounts are refused."""
    nano = read_nano(text)
    step = 10 ** (9 - MINOR_DIGITS[currency])
    if nano % step:
        raise ValidationError(_("Enter at most %(digits)s decimals.") % {"digits": MINOR_DIGITS[currency]})
    return to_minor(nano, currency)


class AmountField(forms.CharField):
    """An amount as people type it; the form says in which currency, and gets whole cents."""

    def __init__(self, **options: Any) -> None:
        defaults = {"max_length": 24, "widget": forms.TextInput({"inputmode": "decimal", "autocomplete": "off"})}
        super().__init__(**{**defaults, **options})


class MoneyForm(forms.Form):
    """`currency` is the account's. Amount fields come out in whole cents."""

    def __init__(self, *args: Any, currency: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.currency = currency

    def _clean_fields(self) -> None:
        super()._clean_fields()  # type: ignore[misc]  # django-stubs leave it out
        for name, field in self.fields.items():
            if isinstance(field, AmountField) and self.cleaned_data.get(name):
                try:
                    self.cleaned_data[name] = read_minor(self.cleaned_data[name], self.currency)
                except ValidationError as error:
                    self.add_error(name, error)


class TopUpForm(MoneyForm):
    """`key` is made with the form, so that one form opens one payment however often it is sent."""

    amount = AmountField(help_text=_("Between 5 and 50,000. Tax is added where it is due."))
    keeps_card = forms.BooleanField(required=False, label=_("Keep the card for auto-recharge and unpaid invoices"))
    key = forms.UUIDField(widget=forms.HiddenInput)


class PromoForm(forms.Form):
    code = forms.CharField(max_length=60, label=_("Code"), widget=forms.TextInput({"autocomplete": "off"}))


class AutoRechargeForm(MoneyForm):
    is_enabled = forms.BooleanField(required=False, label=_("Buy credit when it runs low"))
    threshold = AmountField(label=_("When less is left than"))
    amount = AmountField(
        label=_("Buy at least"), help_text=_("More if it takes more to get above the line, in one charge.")
    )
    ceiling = AmountField(label=_("But at most in a month"))


class LanguageForm(forms.Form):
    language = forms.ChoiceField(
        choices=list(LANGUAGES.items()), help_text=_("Of invoices and reminders, with its dates and money.")
    )


class ExportForm(forms.Form):
    # Billing's words; the portal's catalogue has them.
    kind = forms.ChoiceField(choices=[(kind, _(kind.label)) for kind in ExportKind], label=_("What"))
    file_format = forms.ChoiceField(choices=ExportFormat.choices, label=_("Format"))
    period = forms.CharField(max_length=7, label=_("Month"), widget=forms.TextInput({"type": "month"}))
    group_by = forms.ChoiceField(
        choices=[(name, DIVISION_NAMES[name]) for name in DIVISIONS],
        required=False,
        label=_("Divided by"),
        help_text=_("For showback and chargeback."),
    )
    project = forms.ChoiceField(required=False, help_text=_("For requests."))
    api_key = forms.ChoiceField(required=False, label=_("API key"), help_text=_("For requests."))
    model = forms.ChoiceField(required=False, help_text=_("For requests."))
    end_user = forms.CharField(required=False, max_length=256, label=_("End user"), help_text=_("For requests."))

    def __init__(
        self,
        *args: Any,
        projects: list[tuple[str, str]],
        api_keys: list[tuple[str, str]],
        models: list[tuple[str, str]],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, choices in (("project", projects), ("api_key", api_keys), ("model", models)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [("", _("All")), *choices]

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.amounts import read_nano
from portal.operator.tenants import Order, State, TenantFilters
from portal.plain_text import refuse_invisible


class DialogForm(forms.Form):
    """Several stand on one page: the ids of their fields begin with the form's name, so that labels find theirs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("auto_id", f"{type(self).__name__.lower()}-%s")
        super().__init__(*args, **kwargs)


class TenantFilterForm(forms.Form):
    """From the address; what it does not know counts as not said."""

    q = forms.CharField(
        required=False,
        max_length=200,
        label=_("Search"),
        widget=forms.TextInput({"type": "search", "placeholder": _("Name, slug or member's address")}),
    )
    state = forms.ChoiceField(required=False, label=_("State"), choices=[("", _("All")), *State.choices])
    order = forms.ChoiceField(required=False, label=_("Order"), choices=Order.choices)

    def filters(self) -> TenantFilters:
        self.is_valid()
        data = self.cleaned_data
        return TenantFilters(data.get("q", ""), data.get("state", ""), data.get("order") or Order.NEWEST.value)


class CreditForm(DialogForm):
    """`key` is made with the form, so that one form gives once however often it is sent."""

    amount = forms.CharField(
        max_length=24, help_text=_("Such as 25.00."), widget=forms.TextInput({"inputmode": "decimal"})
    )
    reason = forms.CharField(
        max_length=300, validators=[refuse_invisible], help_text=_("The organization sees it in its ledger.")
    )
    key = forms.UUIDField(widget=forms.HiddenInput)

    def clean_amount(self) -> int:
        amount = read_nano(self.cleaned_data["amount"])
        if not 0 < amount <= 10**15:
            raise ValidationError(_("Enter an amount above zero, and at most 1,000,000."))
        return amount


class TermsForm(DialogForm):
    credit_limit = forms.CharField(
        max_length=24,
        label=_("Credit limit"),
        help_text=_("How far the organization may owe. Zero is prepaid."),
        widget=forms.TextInput({"inputmode": "decimal"}),
    )
    reason = forms.CharField(max_length=300, validators=[refuse_invisible])

    def clean_credit_limit(self) -> int:
        amount = read_nano(self.cleaned_data["credit_limit"])
        if not 0 <= amount <= 10**18:
            raise ValidationError(_("Enter zero or more, and at most 1,000,000,000."))
        return amount


class SuspensionForm(DialogForm):
    reason = forms.CharField(max_length=300, validators=[refuse_invisible])


class ActingForm(DialogForm):
    """How an operator enters an organization's pages."""

    role = forms.ChoiceField(
        choices=[("viewer", _("Look, change nothing")), ("admin", _("Do what an admin may"))], label=_("In order to")
    )
    reason = forms.CharField(
        max_length=300, validators=[refuse_invisible], help_text=_("The organization sees it in its audit log.")
    )


class RunForm(forms.Form):
    period = forms.CharField(max_length=7, label=_("Month"), widget=forms.TextInput({"type": "month"}))
    action = forms.ChoiceField(choices=[("preview", _("Preview")), ("run", _("Run"))])

    def clean_period(self) -> str:
        period = str(self.cleaned_data["period"])
        if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", period):
            raise ValidationError(_("Enter a month as YYYY-MM, such as 2026-11."))
        return period

    def is_preview(self) -> bool:
        action: Any = self.cleaned_data["action"]
        return bool(action == "preview")


class PeriodForm(forms.Form):
    """A month of reconciliation, and why what does not match in it is waived."""

    period = forms.RegexField(
        r"^\d{4}-(0[1-9]|1[0-2])$",
        label=_("Month"),
        help_text=_("In UTC."),
        widget=forms.TextInput({"type": "month"}),
    )
    waiver = forms.CharField(
        max_length=500,
        required=False,
        validators=[refuse_invisible],
        label=_("Waiver"),
        help_text=_("Why unmatched calls are accepted. Kept with your name."),
    )

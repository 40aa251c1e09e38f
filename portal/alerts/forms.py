from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.alerts.kinds import BudgetWindow, RuleKind
from portal.amounts import read_nano
from portal.api_keys.models import ApiKey
from portal.organizations.models import Project
from portal.plain_text import refuse_invisible

CHOICES = {
    "budget:day": _("Budget per day"),
    "budget:week": _("Budget per week"),
    "budget:month": _("Budget per month"),
    "credit:": _("Credit is low"),
    "spend_anomaly:": _("Unusual spend in an hour"),
    "failures:": _("Failing calls"),
}
DEFAULT_THRESHOLDS = {
    RuleKind.BUDGET: [50, 80, 100],
    RuleKind.SPEND_ANOMALY: [300],
    RuleKind.FAILURES: [20],
}
HIGHEST = {RuleKind.BUDGET: 1000, RuleKind.SPEND_ANOMALY: 100_000, RuleKind.FAILURES: 100}
THRESHOLDS_LIMIT = 10


class AlertRuleForm(forms.Form):
    """`scope` is empty for the organization, else project:ID or api_key:ID."""

    what = forms.ChoiceField(choices=list(CHOICES.items()), initial="budget:month", label=_("Watch"))
    amount = forms.CharField(
        required=False,
        max_length=20,
        help_text=_("The budget; the credit that should be left; or the least spend of an unusual hour."),
        widget=forms.TextInput({"inputmode": "decimal", "placeholder": "100"}),
    )
    thresholds = forms.CharField(
        required=False,
        max_length=60,
        label=_("Percent"),
        help_text=_("Of the budget, as 50, 80, 100; of an ordinary hour, as 300; or of failing calls, as 20."),
    )
    scope = forms.ChoiceField(required=False, label=_("Applies to"))

    def __init__(
        self, *args: Any, name: str, projects: Sequence[Project], api_keys: Sequence[ApiKey], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.projects = {str(project.id): project for project in projects}
        self.api_keys = {str(api_key.id): api_key for api_key in api_keys}
        field = self.fields["scope"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            ("", _("The whole organization (%(name)s)") % {"name": name}),
            (_("Projects"), [(f"project:{number}", project.name) for number, project in self.projects.items()]),
            (_("API keys"), [(f"api_key:{number}", str(key)) for number, key in self.api_keys.items()]),
        ]

    def clean_amount(self) -> int | None:
        text = self.cleaned_data["amount"].strip()
        if not text:
            return None
        amount_nano = read_nano(text)
        if not 0 < amount_nano < 2**63:
            raise ValidationError(_("Enter an amount above zero, such as 100.00."))
        return amount_nano

    def clean_thresholds(self) -> list[int]:
        parts = self.cleaned_data["thresholds"].replace("%", " ").replace(",", " ").split()
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ValidationError(_("Enter whole percentages above zero, such as 50, 80, 100."))
        if len(parts) > THRESHOLDS_LIMIT:
            raise ValidationError(_("Enter at most %(limit)s percentages.") % {"limit": THRESHOLDS_LIMIT})
        return sorted({int(part) for part in parts})

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        kind_name, _separator, window = data["what"].partition(":")
        kind = RuleKind(kind_name)
        scope, _separator, number = data["scope"].partition(":")
        thresholds = data["thresholds"] or DEFAULT_THRESHOLDS.get(kind, [])
        if kind != RuleKind.FAILURES and data["amount"] is None:
            raise ValidationError({"amount": _("Enter an amount, such as 100.00.")})
        if kind in HIGHEST and thresholds[-1] > HIGHEST[kind]:
            raise ValidationError(
                {"thresholds": _("Enter percentages of at most %(highest)s.") % {"highest": HIGHEST[kind]}}
            )
        if kind in (RuleKind.SPEND_ANOMALY, RuleKind.FAILURES) and len(thresholds) != 1:
            raise ValidationError({"thresholds": _("Enter one percentage.")})
        if kind in (RuleKind.CREDIT, RuleKind.FAILURES) and scope:
            raise ValidationError({"scope": _("This is watched for the whole organization only.")})
        data["rule"] = {
            "kind": kind,
            "window": BudgetWindow(window).value if window else "",
            "amount_nano": None if kind == RuleKind.FAILURES else data["amount"],
            "thresholds": [] if kind == RuleKind.CREDIT else thresholds,
            "project": self.projects[number] if scope == "project" else None,
            "api_key": self.api_keys[number] if scope == "api_key" else None,
        }
        return data


class WebhookForm(forms.Form):
    url = forms.CharField(
        max_length=500,
        label=_("Address"),
        widget=forms.URLInput({"placeholder": "https://example.com/hooks/tokens"}),
        help_text=_("Events are sent here by POST, signed."),
    )
    description = forms.CharField(required=False, max_length=100, validators=[refuse_invisible])


class ChangeWebhookForm(WebhookForm):
    is_enabled = forms.BooleanField(required=False, label=_("Switched on"))

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.amounts import plain_number, read_nano
from portal.api_keys.models import ApiKey
from portal.organizations.models import Member, Project
from portal.plain_text import refuse_invisible
from portal.quotas.models import Mode, QuotaKind, Window

# What may be limited in which window, as one choice.
CHOICES = {
    "requests:minute": _("Requests per minute"),
    "requests:day": _("Requests per day"),
    "tokens:minute": _("Tokens per minute"),
    "tokens:day": _("Tokens per day"),
    "tokens:month": _("Tokens per month"),
    "input_tokens:minute": _("Input tokens per minute"),
    "input_tokens:day": _("Input tokens per day"),
    "output_tokens:minute": _("Output tokens per minute"),
    "output_tokens:day": _("Output tokens per day"),
    "spend:day": _("Spend per day"),
    "spend:week": _("Spend per week"),
    "spend:month": _("Spend per month"),
    "spend:lifetime": _("Spend in all"),
    "concurrency:now": _("Requests at the same time"),
}


def read_limit(kind: str, text: str) -> int:
    """Nano-units for spend, else a count. Raises ValidationError."""
    try:
        limit = read_nano(text) if kind == QuotaKind.SPEND else int(plain_number(text))
    except (ValidationError, ValueError):
        raise ValidationError(_("Enter a whole number, or for spend an amount such as 25.50.")) from None
    if not 0 <= limit <= 2**63 - 1:
        raise ValidationError(_("Enter a number from 0 to 9,223,372,036,854,775,807."))
    return limit


class QuotaForm(forms.Form):
    """`scope` is empty for the organization, else project:ID, api_key:ID or member:ID."""

    scope = forms.ChoiceField(required=False, label=_("Applies to"))
    what = forms.ChoiceField(choices=list(CHOICES.items()), label=_("Limits"))
    amount = forms.CharField(
        max_length=30,
        label=_("At most"),
        help_text=_("A whole number; for spend an amount of money, such as 25.50. Zero refuses everything."),
        widget=forms.TextInput({"inputmode": "decimal"}),
    )
    model = forms.ChoiceField(required=False, label=_("Model"))
    mode = forms.ChoiceField(
        choices=Mode.choices,
        initial=Mode.HARD,
        required=False,
        label=_("When there is no room"),
        help_text=_("To try a limit out, only log: the call goes through, and the log says that it had no room."),
    )
    reason = forms.CharField(
        required=False, max_length=500, validators=[refuse_invisible], help_text=_("Kept in the audit log.")
    )

    def __init__(
        self,
        *args: Any,
        name: str,
        projects: list[Project],
        api_keys: list[ApiKey],
        members: list[Member],
        models: list[str],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.members = {str(member.id): member for member in members}
        self.projects = {str(project.id): project for project in projects}
        self.api_keys = {str(api_key.id): api_key for api_key in api_keys}
        field = self.fields["scope"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            ("", _("The whole organization (%(name)s)") % {"name": name}),
            (_("Projects"), [(f"project:{number}", project.name) for number, project in self.projects.items()]),
            (_("API keys"), [(f"api_key:{number}", str(key)) for number, key in self.api_keys.items()]),
            (_("All keys of a member"), [(f"member:{number}", str(row.user)) for number, row in self.members.items()]),
        ]
        choice = self.fields["model"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [("", _("All models")), *((model, model) for model in models)]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if "what" not in data or "amount" not in data:
            return data
        kind, _separator, window = data["what"].partition(":")
        scope, _separator, number = data.get("scope", "").partition(":")
        try:
            limit = read_limit(kind, data["amount"])
        except ValidationError as error:
            raise ValidationError({"amount": error.messages}) from None
        data["quota"] = {
            "kind": QuotaKind(kind),
            "window": Window(window),
            "limit": limit,
            "reason": data.get("reason", ""),
            "project": self.projects[number] if scope == "project" else None,
            "api_key": self.api_keys[number] if scope == "api_key" else None,
            "member": self.members[number] if scope == "member" else None,
            "model": data.get("model", ""),
            "mode": Mode(data.get("mode") or Mode.HARD),
        }
        return data

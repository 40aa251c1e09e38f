from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.accounts.services import ADDRESS_FIELDS
from billing.usage.selectors import Only, UsageFilters
from portal.api_keys import selectors as api_keys
from portal.catalog import selectors as catalog
from portal.days import DayField
from portal.organizations.models import Organization, Project
from portal.plain_text import refuse_invisible

KEYS_OFFERED = 200
STATUSES = {"completed": _("Completed"), "cancelled": _("Cancelled"), "failed": _("Failed"), "started": _("Running")}
ONLY_FIELDS = ("model", "api_key", "project", "end_user")


class UsageOnlyForm(forms.Form):
    """What usage is narrowed to, in the URL. An odd value filters nothing and is shown as an error at its field."""

    model = forms.ChoiceField(required=False, label=_("Model"))
    api_key = forms.ChoiceField(required=False, label=_("API key"))
    project = forms.ChoiceField(required=False, label=_("Project"))
    end_user = forms.CharField(required=False, label=_("End user"), max_length=256)

    def __init__(self, data: Any, *, organization: Organization, projects: list[Project]) -> None:
        super().__init__(data)
        choices: dict[str, list[tuple[Any, str]]] = {
            "model": [(model.name, model.name) for model in catalog.all_models()],
            "api_key": self._keys(organization, data.get("api_key", "")),
            "project": [(project.id, project.name) for project in projects],
        }
        for name, options in choices.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [("", _("All")), *options]

    def _keys(self, organization: Organization, chosen: str) -> list[tuple[int, str]]:
        """The newest keys, and the one that the address names even if it is older."""
        found = dict(api_keys.newest_names(organization, KEYS_OFFERED))
        if chosen.isdecimal() and len(chosen) < 19 and int(chosen) not in found:
            found |= api_keys.names_by_id(organization.id, [int(chosen)])
        return sorted(found.items(), key=lambda item: item[1].lower())

    def only(self) -> Only:
        self.is_valid()
        data = self.cleaned_data
        return Only(
            model=data.get("model", ""),
            project_id=int(data["project"]) if data.get("project") else None,
            api_key_id=int(data["api_key"]) if data.get("api_key") else None,
            end_user=data.get("end_user", ""),
        )

    def is_filtered(self) -> bool:
        return any(self.cleaned_data.values()) or bool(self.errors)

    def query(self) -> str:
        """The fields as another page of usage takes them."""
        return urlencode({name: value for name, value in self.cleaned_data.items() if value and name in ONLY_FIELDS})


class UsageFilterForm(UsageOnlyForm):
    """The list of requests can be narrowed by status and days too."""

    status = forms.ChoiceField(required=False, label=_("Status"), choices=[("", _("All")), *STATUSES.items()])
    start = DayField(required=False, label=_("From"))
    end = DayField(required=False, label=_("To"))

    def filters(self) -> UsageFilters:
        only = self.only()
        data = self.cleaned_data
        return UsageFilters(
            project_id=only.project_id,
            api_key_id=only.api_key_id,
            model=only.model,
            end_user=only.end_user,
            status=data.get("status", ""),
            start=_midnight(data["start"]) if data.get("start") else None,
            end=_midnight(data["end"] + timedelta(days=1)) if data.get("end") else None,
        )


def _midnight(date: Any) -> datetime:
    return timezone.make_aware(datetime(date.year, date.month, date.day))  # noqa: DTZ001 made aware here


class BillingDetailsForm(forms.Form):
    """Whom invoices are addressed to."""

    email = forms.EmailField(label=_("E-mail for invoices"), max_length=254)
    legal_name = forms.CharField(required=False, max_length=200, validators=[refuse_invisible])
    address_line1 = forms.CharField(required=False, max_length=200, label=_("Address"), validators=[refuse_invisible])
    address_line2 = forms.CharField(
        required=False, max_length=200, label=_("Address, second line"), validators=[refuse_invisible]
    )
    postal_code = forms.CharField(required=False, max_length=32, validators=[refuse_invisible])
    city = forms.CharField(required=False, max_length=120, validators=[refuse_invisible])
    region = forms.CharField(required=False, max_length=120, label=_("State or region"), validators=[refuse_invisible])
    country = forms.RegexField(
        r"^[A-Za-z]{2}$",
        required=False,
        help_text=_("Two letters, such as DE."),
        error_messages={"invalid": _("Enter the two-letter country code, such as DE.")},
    )
    tax_id = forms.CharField(required=False, max_length=64, label=_("Tax number"), validators=[refuse_invisible])

    def clean_country(self) -> str:
        return str(self.cleaned_data["country"]).upper()

    def address(self) -> dict[str, str]:
        return {name: self.cleaned_data[name] for name in ADDRESS_FIELDS}

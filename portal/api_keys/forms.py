from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.amounts import read_nano
from portal.api_keys.models import ApiKey
from portal.api_keys.routes import Route
from portal.api_keys.services import KeyRules
from portal.catalog.selectors import ModelInfo
from portal.client_address import parse_network
from portal.organizations.models import Organization, Project
from portal.organizations.roles import Role
from portal.permissions import may_grant
from portal.plain_text import refuse_invisible

LIFETIMES = {"": _("Never"), "7": _("In 7 days"), "30": _("In 30 days"), "90": _("In 90 days"), "365": _("In a year")}
OVERLAPS = {"0": _("At once"), "1": _("In an hour"), "24": _("In a day"), "168": _("In a week"), "720": _("In 30 days")}
NETWORKS_LIMIT = 50


class NetworksField(forms.CharField):
    """Addresses and networks, one a line or separated by commas; the value is a list in canonical form."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("required", False)
        kwargs.setdefault("label", _("Allowed networks"))
        kwargs.setdefault("help_text", _("Addresses or networks, one a line. Empty: from everywhere."))
        super().__init__(widget=forms.Textarea({"rows": 3, "placeholder": "203.0.113.0/24\n2001:db8::/32"}), **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list | tuple) else value

    def clean(self, value: Any) -> list[str]:
        parts = [part for part in super().clean(value).replace(",", "\n").split() if part]
        if len(parts) > NETWORKS_LIMIT:
            raise forms.ValidationError(
                _("These are %(count)s networks; at most %(limit)s are kept.")
                % {"count": len(parts), "limit": NETWORKS_LIMIT}
            )
        try:
            return list(dict.fromkeys(str(parse_network(part)) for part in parts))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


class RulesForm(forms.Form):
    """What a key may be used for, and from where."""

    routes = forms.MultipleChoiceField(
        choices=Route.choices,
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label=_("Allowed APIs"),
        help_text=_("None ticked: all of them."),
    )
    models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label=_("Allowed models"),
        help_text=_("None ticked: all of them, also those published later."),
    )
    networks = NetworksField()

    def __init__(self, *args: Any, models: list[ModelInfo], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = (self.initial or {}).get("models", [])
        offered = {model.name: model.display_name for model in models}
        field = self.fields["models"]
        assert isinstance(field, forms.MultipleChoiceField)
        # A model that is no longer offered stays on the list of the key that names it.
        field.choices = list(({name: name for name in chosen} | offered).items())

    def rules(self) -> KeyRules:
        data = self.cleaned_data
        return KeyRules(routes=data["routes"], models=data["models"], networks=data["networks"])


class ApiKeyForm(RulesForm):
    name = forms.CharField(
        max_length=100,
        validators=[refuse_invisible],
        help_text=_("What it is for, such as laptop or production."),
        widget=forms.TextInput(),
    )
    project = forms.ModelChoiceField(Project.objects.none(), empty_label=None)
    expires = forms.ChoiceField(required=False, choices=list(LIFETIMES.items()))
    budget = forms.CharField(
        required=False,
        max_length=20,
        label=_("Budget per month"),
        help_text=_("Calls beyond it are refused. Empty: no budget of its own."),
        widget=forms.TextInput({"inputmode": "decimal", "placeholder": "25.00"}),
    )

    def __init__(self, *args: Any, projects: list[Project], may_limit: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["project"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Project.objects.filter(id__in=[project.id for project in projects])
        if projects:
            field.initial = projects[0].id
        # One project leaves nothing to choose.
        if len(projects) == 1:
            field.widget = forms.HiddenInput()
        if not may_limit:
            del self.fields["budget"]

    def clean_budget(self) -> int | None:
        text = self.cleaned_data["budget"].strip()
        if not text:
            return None
        amount_nano = read_nano(text)
        if not 0 < amount_nano < 2**63:
            raise forms.ValidationError(_("Enter an amount above zero, such as 25.00."))
        return amount_nano

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None


class ChangeKeyForm(RulesForm):
    name = forms.CharField(max_length=100, validators=[refuse_invisible])
    last_day = forms.DateField(
        required=False,
        label=_("Last day"),
        widget=forms.DateInput({"type": "date"}, format="%Y-%m-%d"),
    )

    def __init__(self, data: Any, *, api_key: ApiKey, organization: Organization, models: list[ModelInfo]) -> None:
        self._zone = ZoneInfo(organization.time_zone)
        self._before = api_key.expires_at
        initial = {
            "name": api_key.name,
            "last_day": self._last_day(api_key.expires_at),
            "routes": api_key.allowed_routes,
            "models": api_key.allowed_models,
            "networks": api_key.allowed_networks,
        }
        super().__init__(data, initial=initial, models=models)
        self.fields["last_day"].help_text = _("It works until the end of this day in %(zone)s.") % {
            "zone": organization.time_zone
        }

    def _last_day(self, expires_at: datetime | None) -> date | None:
        return (expires_at - timedelta(microseconds=1)).astimezone(self._zone).date() if expires_at else None

    def expires_at(self) -> datetime | None:
        """The given day's end; what it was before where the day is unchanged."""
        day: date | None = self.cleaned_data["last_day"]
        if day == self._last_day(self._before):
            return self._before
        if day is None:
            return None
        return datetime(day.year, day.month, day.day, tzinfo=self._zone) + timedelta(days=1)

    def clean_last_day(self) -> date | None:
        day: date | None = self.cleaned_data["last_day"]
        if (
            day is not None
            and day != self._last_day(self._before)
            and day < timezone.now().astimezone(self._zone).date()
        ):
            raise forms.ValidationError(_("This day is over; to end the key now, revoke it."))
        return day


class RotateForm(forms.Form):
    overlap = forms.ChoiceField(
        choices=list(OVERLAPS.items()),
        initial="24",
        label=_("The old secret ends"),
        help_text=_("Until then both work, so that programs can be changed one after the other."),
    )

    def duration(self) -> timedelta:
        return timedelta(hours=int(self.cleaned_data["overlap"]))


class OperatorKeyForm(forms.Form):
    """Without `may_change` the key only reads. It always ends."""

    name = forms.CharField(
        max_length=100, validators=[refuse_invisible], help_text=_("Which program acts with it, such as dashboard.")
    )
    may_change = forms.BooleanField(required=False, label=_("May change things, not only read"))
    expires = forms.ChoiceField(choices=[(days, LIFETIMES[days]) for days in ("7", "30", "90")], initial="30")
    networks = NetworksField()

    def expires_at(self) -> datetime:
        return timezone.now() + timedelta(days=int(self.cleaned_data["expires"]))


class ManagementKeyForm(forms.Form):
    name = forms.CharField(
        max_length=100, validators=[refuse_invisible], help_text=_("Which program acts with it, such as terraform.")
    )
    role = forms.ChoiceField(help_text=_("What it may do, as for a member."))
    expires = forms.ChoiceField(required=False, choices=list(LIFETIMES.items()), initial="90")
    networks = NetworksField()

    def __init__(self, *args: Any, granter: Role, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["role"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(role.value, role.label) for role in Role if may_grant(granter, role)]
        field.initial = Role.VIEWER.value

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from portal.organizations.models import Member, Organization
from portal.organizations.origins import EXAMPLE, ORIGINS_LIMIT, parse_origin
from portal.organizations.roles import Role
from portal.permissions import may_grant
from portal.plain_text import refuse_invisible

TIME_ZONES = sorted(name for name in available_timezones() if "/" in name or name == "UTC")


class OrganizationForm(forms.Form):
    name = forms.CharField(
        max_length=100, validators=[refuse_invisible], help_text=_("Your company, team or own name.")
    )
    currency = forms.ChoiceField(
        required=False,
        label=_("Currency"),
        choices=lambda: [(code, code) for code in settings.BILLING_CURRENCIES],
        help_text=_("In which it pays. It cannot be changed later."),
    )

    @property
    def has_choice_of_currency(self) -> bool:
        return len(settings.BILLING_CURRENCIES) > 1


class SettingsForm(forms.Form):
    name = forms.CharField(max_length=100, validators=[refuse_invisible])
    time_zone = forms.ChoiceField(
        choices=[(name, name) for name in TIME_ZONES],
        help_text=_("Decides when daily and monthly limits begin anew, and which months are invoiced."),
    )

    def __init__(self, data: Any, *, organization: Organization) -> None:
        super().__init__(data, initial={"name": organization.name, "time_zone": organization.time_zone})


class OriginsForm(forms.Form):
    origins = forms.CharField(
        required=False,
        label=_("Allowed origins"),
        help_text=_("Scheme, host and port, one a line. Empty: calls from web pages are not possible."),
        widget=forms.Textarea({"rows": 3, "placeholder": f"{EXAMPLE}\nhttp://localhost:3000"}),
    )

    def __init__(self, data: Any, *, organization: Organization) -> None:
        super().__init__(data, initial={"origins": "\n".join(organization.allowed_origins)})

    def clean_origins(self) -> list[str]:
        parts = self.cleaned_data["origins"].replace(",", "\n").split()
        if len(parts) > ORIGINS_LIMIT:
            raise forms.ValidationError(
                _("These are %(count)s origins; at most %(limit)s are kept.")
                % {"count": len(parts), "limit": ORIGINS_LIMIT}
            )
        try:
            return list(dict.fromkeys(parse_origin(part) for part in parts))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


class ProjectForm(forms.Form):
    name = forms.CharField(
        max_length=100,
        validators=[refuse_invisible],
        help_text=_("Keys, usage and limits can be told apart by project."),
    )


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=Role.choices)


class InvitationForm(forms.Form):
    email = forms.EmailField(max_length=254, label=_("E-mail address"))
    role = forms.ChoiceField(choices=[], initial=Role.DEVELOPER.value)

    def __init__(self, *args: Any, granter: Role, **kwargs: Any) -> None:
        """`granter` is the inviting member's role: nobody gives a role above their own."""
        super().__init__(*args, **kwargs)
        field = self.fields["role"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(role.value, role.label) for role in Role if may_grant(granter, role)]


class TransferForm(forms.Form):
    to = forms.ChoiceField(label=_("New owner"), help_text=_("You become an admin."))

    def __init__(self, *args: Any, colleagues: list[Member], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.colleagues = {str(member.id): member for member in colleagues}
        field = self.fields["to"]
        assert isinstance(field, forms.ChoiceField)
        labels = {role.value: str(role.label) for role in Role}
        field.choices = [
            (number, f"{member.user.get_full_name()} ({labels[member.role]})")
            for number, member in self.colleagues.items()
        ]

    def member(self) -> Member:
        return self.colleagues[self.cleaned_data["to"]]


class ArchiveForm(forms.Form):
    """Why a project is archived; its dialog stands in the project's row."""

    reason = forms.CharField(required=False, max_length=500, validators=[refuse_invisible])


class DeletionForm(forms.Form):
    confirmation = forms.CharField(label=_("Type the organization's name to confirm"), max_length=100)
    reason = forms.CharField(
        required=False, max_length=500, validators=[refuse_invisible], help_text=_("Kept in the audit log.")
    )

    def __init__(self, *args: Any, name: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._name = name

    def clean_confirmation(self) -> str:
        if self.cleaned_data["confirmation"].strip() != self._name:
            raise forms.ValidationError(_("This is not the name; it is %(name)s.") % {"name": self._name})
        return self._name

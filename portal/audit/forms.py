from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.audit.selectors import SERVICE_SUBJECTS, SUBJECTS, EventFilters
from portal.days import DayField
from portal.organizations.models import Organization
from portal.organizations.selectors import organization_by_slug


class AuditFilterForm(forms.Form):
    """All optional; what cannot be read is left out by the page and named by the management API."""

    about = forms.ChoiceField(required=False, choices=[("", _("Everything")), *SUBJECTS.items()])
    person = forms.CharField(required=False, max_length=254, label=_("Who"))
    text = forms.CharField(required=False, max_length=200, label=_("What"))
    start = DayField(required=False, label=_("From"))
    end = DayField(required=False, label=_("Until"))

    def filters(self, time_zone: str) -> EventFilters:
        """Days are those of this zone; the last one is included."""
        data = self.cleaned_data if self.is_valid() else getattr(self, "cleaned_data", {})
        zone = ZoneInfo(time_zone)
        start, end = data.get("start"), data.get("end")
        return EventFilters(
            about=data.get("about", ""),
            person=data.get("person", ""),
            text=data.get("text", ""),
            start=datetime(start.year, start.month, start.day, tzinfo=zone) if start else None,
            end=datetime(end.year, end.month, end.day, tzinfo=zone) + timedelta(days=1) if end else None,
        )


class ServiceAuditFilterForm(AuditFilterForm):
    """For operators: events of every organization, or of one."""

    about = forms.ChoiceField(required=False, choices=[("", _("Everything")), *SERVICE_SUBJECTS.items()])
    organization = forms.SlugField(required=False, max_length=60, help_text=_("Its short name."))

    def clean_organization(self) -> Organization | None:
        slug = self.cleaned_data["organization"]
        found = organization_by_slug(slug) if slug else None
        if slug and found is None:
            raise forms.ValidationError(_("There is no organization '%(slug)s'.") % {"slug": slug})
        return found

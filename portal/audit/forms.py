from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.audit.selectors import SUBJECTS, EventFilters
from portal.organizations.models import Organization


class AuditFilterForm(forms.Form):
    """All optional; what cannot be read is left out by the page and named by the management API."""

    about = forms.ChoiceField(required=False, choices=[("", _("Everything")), *SUBJECTS.items()])
    person = forms.CharField(required=False, max_length=254, label=_("Who"))
    text = forms.CharField(required=False, max_length=200, label=_("What"))
    start = forms.DateField(required=False, label=_("From"), widget=forms.DateInput({"type": "date"}))
    end = forms.DateField(required=False, label=_("Until"), widget=forms.DateInput({"type": "date"}))

    def filters(self, organization: Organization) -> EventFilters:
        """Days are those of the organization's zone; the last one is included."""
        data = self.cleaned_data if self.is_valid() else getattr(self, "cleaned_data", {})
        zone = ZoneInfo(organization.time_zone)
        start, end = data.get("start"), data.get("end")
        return EventFilters(
            about=data.get("about", ""),
            person=data.get("person", ""),
            text=data.get("text", ""),
            start=datetime(start.year, start.month, start.day, tzinfo=zone) if start else None,
            end=datetime(end.year, end.month, end.day, tzinfo=zone) + timedelta(days=1) if end else None,
        )

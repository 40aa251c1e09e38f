from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone

from portal.organizations.models import Project

LIFETIMES = {"": "Never", "7": "In 7 days", "30": "In 30 days", "90": "In 90 days", "365": "In a year"}


class ApiKeyForm(forms.Form):
    name = forms.CharField(
        max_length=100, help_text="What it is for, such as laptop or production.", widget=forms.TextInput()
    )
    project = forms.ModelChoiceField(Project.objects.none(), empty_label=None)
    expires = forms.ChoiceField(required=False, choices=list(LIFETIMES.items()))

    def __init__(self, *args: Any, projects: list[Project], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["project"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Project.objects.filter(id__in=[project.id for project in projects])
        if projects:
            field.initial = projects[0].id
        # One project leaves nothing to choose.
        if len(projects) == 1:
            field.widget = forms.HiddenInput()

    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None

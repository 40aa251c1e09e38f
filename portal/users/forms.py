from __future__ import annotations

from django import forms

from portal.users.models import User


class ProfileForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable when it runs
    class Meta:
        model = User
        fields = ("name",)
        labels = {"name": "Your name"}
        help_texts = {"name": "How colleagues see you in the audit log and the members list."}

from __future__ import annotations

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from portal.users.models import User


class ProfileForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable when it runs
    language = forms.ChoiceField(
        label=_("Language"), required=False, choices=[("", _("As the browser asks")), *settings.LANGUAGES]
    )

    class Meta:
        model = User
        fields = ("name", "language")
        labels = {"name": _("Your name")}
        help_texts = {"name": _("How colleagues see you in the audit log and the members list.")}

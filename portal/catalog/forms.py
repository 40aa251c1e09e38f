from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from billing.money import parse_nano
from portal.catalog.models import Deployment, Model


class ModelForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable when it runs
    class Meta:
        model = Model
        fields = (
            "name",
            "display_name",
            "description",
            "context_tokens",
            "default_max_output_tokens",
            "max_output_tokens",
            "is_published",
        )
        labels = {
            "name": "Public name",
            "context_tokens": "Context, tokens",
            "default_max_output_tokens": "Output when the caller sets no limit, tokens",
            "max_output_tokens": "Most output, tokens",
            "is_published": "Published: callers see it and may call it",
        }
        help_texts = {"name": "What callers write as model. It cannot be changed later: usage and prices refer to it."}
        widgets = {"description": forms.Textarea({"rows": 3})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.fields["name"].disabled = True


class DeploymentForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable when it runs
    class Meta:
        model = Deployment
        fields = ("kind", "address", "upstream_model", "credential_variable", "weight", "is_enabled")
        labels = {
            "upstream_model": "Name of the model there",
            "credential_variable": "Variable with its key",
            "is_enabled": "Enabled: gets traffic",
        }
        help_texts = {"weight": "Share of the traffic, compared with the model's other deployments."}


class PriceForm(forms.Form):
    """Amounts per million tokens, as people write them."""

    input_price = forms.CharField(max_length=24, label="Input")
    cached_input_price = forms.CharField(
        max_length=24, label="Cached input", required=False, help_text="Empty: the same as input."
    )
    output_price = forms.CharField(max_length=24, label="Output")
    effective_from = forms.DateTimeField(
        required=False,
        label="In force from",
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text="Empty: from now on. Calls before keep their price.",
    )

    def _nano(self, name: str) -> int | None:
        text = str(self.cleaned_data[name]).replace(",", "").replace("$", "").strip()
        if not text:
            return None
        try:
            amount = parse_nano(text)
        except ValueError as error:
            raise ValidationError(str(error)) from None
        if amount < 0:
            raise ValidationError("A price cannot be below zero.")
        return amount

    def clean_input_price(self) -> int | None:
        return self._nano("input_price")

    def clean_cached_input_price(self) -> int | None:
        return self._nano("cached_input_price")

    def clean_output_price(self) -> int | None:
        return self._nano("output_price")

    def clean_effective_from(self) -> Any:
        moment = self.cleaned_data["effective_from"]
        if moment and moment < timezone.now():
            raise ValidationError("A price cannot begin in the past: calls since then are billed already.")
        return moment or timezone.now()

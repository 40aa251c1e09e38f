from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast
from uuid import uuid4

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.pricing.selectors import Tier
from billing.pricing.services import Figures
from portal.amounts import plain_number, read_nano
from portal.catalog.models import Deployment, Model
from portal.organizations.models import Organization
from portal.plain_text import refuse_invisible


def _organization(slug: str) -> Organization | None:
    found = Organization.objects.filter(slug=slug).first()
    if slug and found is None:
        raise ValidationError(_("There is no organization %(slug)s.") % {"slug": repr(slug)})
    return found


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
            "name": _("Public name"),
            "context_tokens": _("Context, tokens"),
            "default_max_output_tokens": _("Output when the caller sets no limit, tokens"),
            "max_output_tokens": _("Most output, tokens"),
            "is_published": _("Published: callers see it and may call it"),
        }
        help_texts = {
            "name": _("What callers write as model. It cannot be changed later: usage and prices refer to it.")
        }
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
            "upstream_model": _("Name of the model there"),
            "credential_variable": _("Variable with its key"),
            "is_enabled": _("Enabled: gets traffic"),
        }
        help_texts = {"weight": _("Share of the traffic, compared with the model's other deployments.")}


class PriceForm(forms.Form):
    """Amounts per million tokens, as people write them; the minimum per request."""

    input_price = forms.CharField(max_length=24, label=_("Input"))
    cached_input_price = forms.CharField(
        max_length=24, label=_("Cached input"), required=False, help_text=_("Empty: the same as input.")
    )
    output_price = forms.CharField(max_length=24, label=_("Output"))
    cache_write_price = forms.CharField(
        max_length=24, label=_("Cache write"), required=False, help_text=_("Empty: the same as input.")
    )
    reasoning_price = forms.CharField(
        max_length=24, label=_("Reasoning"), required=False, help_text=_("Empty: the same as output.")
    )
    minimum = forms.CharField(
        max_length=24, label=_("Minimum for a request"), required=False, help_text=_("What a request costs at least.")
    )
    currency = forms.ChoiceField(
        required=False,
        label=_("Currency"),
        choices=lambda: [(code, code) for code in settings.BILLING_CURRENCIES],
        help_text=_("Each currency has a list price of its own. One organization's price is in its own currency."),
    )
    organization = forms.SlugField(
        required=False,
        label=_("Only for organization"),
        help_text=_("Its short name. Empty: the list price, for everyone."),
    )
    effective_from = forms.DateTimeField(
        required=False,
        label=_("In force from"),
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=_("Empty: from now on. Calls before keep their price."),
    )
    effective_until = forms.DateTimeField(
        required=False,
        label=_("Until"),
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=_("Empty: for good. After it the price before is in force again."),
    )

    seen_price_id = forms.IntegerField(required=False, min_value=0, widget=forms.HiddenInput)

    def _nano(self, name: str) -> int | None:
        text = str(self.cleaned_data[name]).strip()
        if not text:
            return None
        amount = read_nano(text)
        if amount < 0:
            raise ValidationError(_("A price cannot be below zero."))
        return amount

    def clean_input_price(self) -> int | None:
        return self._nano("input_price")

    def clean_cached_input_price(self) -> int | None:
        return self._nano("cached_input_price")

    def clean_output_price(self) -> int | None:
        return self._nano("output_price")

    def clean_cache_write_price(self) -> int | None:
        return self._nano("cache_write_price")

    def clean_reasoning_price(self) -> int | None:
        return self._nano("reasoning_price")

    def clean_minimum(self) -> int:
        return self._nano("minimum") or 0

    def clean_organization(self) -> Organization | None:
        return _organization(self.cleaned_data["organization"])

    def figures(self) -> Figures:
        return Figures(
            self.cleaned_data["input_price"],
            self.cleaned_data["cached_input_price"],
            self.cleaned_data["output_price"],
            self.cleaned_data["cache_write_price"],
            self.cleaned_data["reasoning_price"],
            self.cleaned_data["minimum"],
        )

    def clean_effective_from(self) -> Any:
        moment = self.cleaned_data["effective_from"]
        if moment and moment < timezone.now():
            raise ValidationError(_("A price cannot begin in the past: calls since then are billed already."))
        return moment or timezone.now()


class DiscountForm(forms.Form):
    """So much off a model's list price for one organization. `key` is made with the form: it gives once."""

    organization = forms.SlugField(label=_("Organization"), help_text=_("Its short name."))
    percent = forms.DecimalField(
        label=_("Percent off"), max_digits=5, decimal_places=2, min_value=Decimal("0.01"), max_value=100
    )
    reason = forms.CharField(max_length=300, validators=[refuse_invisible])
    effective_until = forms.DateTimeField(
        required=False,
        label=_("Until"),
        widget=forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=_("Empty: for good."),
    )
    key = forms.UUIDField(widget=forms.HiddenInput, initial=uuid4)

    def clean_organization(self) -> Organization | None:
        return _organization(self.cleaned_data["organization"])

    def clean_percent(self) -> int:
        """In basis points."""
        return int(self.cleaned_data["percent"] * 100)


class AnyModelDiscountForm(DiscountForm):
    """Off one model's list price or off all of them."""

    model = forms.ModelChoiceField(
        Model.objects.order_by("name"), to_field_name="name", required=False, empty_label=_("All models")
    )
    field_order = ("organization", "model", "percent", "reason", "effective_until")


class DiscountEndForm(forms.Form):
    reason = forms.CharField(max_length=300, validators=[refuse_invisible])


class TierForm(forms.Form):
    """One tier; an empty row is none."""

    from_tokens = forms.CharField(max_length=24, required=False, label=_("From tokens in a month"))
    percent = forms.DecimalField(
        required=False, label=_("Percent off"), max_digits=5, decimal_places=2, min_value=Decimal("0.01"), max_value=100
    )

    def clean_from_tokens(self) -> int | None:
        text = plain_number(str(self.cleaned_data["from_tokens"]))
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**18):
            raise ValidationError(_("Enter a whole number of tokens above zero, such as 1,000,000,000."))
        return int(text)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not self.errors and (data.get("from_tokens") is None) != (data.get("percent") is None):
            raise ValidationError(_("A tier needs both: from how many tokens on, and how much off."))
        return data


class TierFormSet(forms.BaseFormSet):  # type: ignore[type-arg]  # not subscriptable when it runs
    def tiers(self) -> list[Tier]:
        rows = [form.cleaned_data for form in self.forms if form.cleaned_data.get("from_tokens") is not None]
        return [Tier(row["from_tokens"], int(row["percent"] * 100)) for row in rows]


def tier_forms(data: Any = None, tiers: Sequence[Tier] = ()) -> TierFormSet:
    """A row for each tier and some empty ones."""
    made = forms.formset_factory(TierForm, formset=TierFormSet, extra=3, max_num=20)
    initial = [{"from_tokens": f"{tier.from_tokens:,}", "percent": Decimal(tier.basis_points) / 100} for tier in tiers]
    return cast(TierFormSet, made(data, initial=initial, prefix="tier"))

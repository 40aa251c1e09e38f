"""What the operations and capacity pages may be asked, in the address."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from billing.rollups.service import ServiceFilters
from portal.catalog import selectors as catalog
from portal.operations.selectors import DEFAULT_RANGE, GROUPS, RANGES, ViewFilters
from portal.organizations import selectors as organizations


class ViewForm(forms.Form):
    """Filters of the operations view. An organization is named by its slug."""

    range = forms.ChoiceField(required=False, choices=[(key, row.label) for key, row in RANGES.items()])
    group = forms.ChoiceField(required=False, choices=list(GROUPS.items()))
    model = forms.ChoiceField(required=False)
    deployment = forms.ChoiceField(required=False)
    organization = forms.SlugField(required=False, max_length=60)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        deployments = catalog.deployments()
        names = [("", _("All"))] + [(row.name, row.name) for row in catalog.all_models()]
        addresses = [("", _("All"))] + [(str(row.id), f"{row.address} ({row.model})") for row in deployments]
        for field, choices in (("model", names), ("deployment", addresses)):
            choice = self.fields[field]
            assert isinstance(choice, forms.ChoiceField)
            choice.choices = choices

    def clean_organization(self) -> Any:
        """The organization of that slug, or None."""
        slug = self.cleaned_data["organization"]
        if not slug:
            return None
        found = organizations.organization_by_slug(slug)
        if found is None:
            raise forms.ValidationError(_("There is no organization '%(slug)s'.") % {"slug": slug})
        return found

    def filters(self) -> ViewFilters:
        data = self.cleaned_data
        organization = data.get("organization")
        return ViewFilters(
            range=data.get("range") or DEFAULT_RANGE,
            group=data.get("group") or "model",
            service=ServiceFilters(
                model=data.get("model", ""),
                deployment_id=int(data["deployment"]) if data.get("deployment") else None,
                organization_id=organization.id if organization else None,
            ),
        )


class CapacityForm(forms.Form):
    """The assumptions of the capacity page; each has a default, so an empty address is a whole question."""

    tokens_per_s = forms.DecimalField(
        required=False,
        min_value=Decimal("0.1"),
        max_digits=12,
        decimal_places=2,
        label=_("Tokens per second"),
    )
    compare_with = forms.DecimalField(
        required=False,
        min_value=Decimal("0.1"),
        max_digits=12,
        decimal_places=2,
        label=_("Compared with"),
    )
    gpus = forms.IntegerField(required=False, min_value=1, max_value=4096, label=_("GPUs of a deployment"))
    gpu_hour = forms.DecimalField(
        required=False, min_value=Decimal(0), max_digits=10, decimal_places=4, label=_("Price of a GPU hour")
    )
    load = forms.IntegerField(required=False, min_value=1, max_value=100, label=_("Load, percent"))

    DEFAULTS = {"gpus": 1, "gpu_hour": Decimal("2.00"), "load": 70}

    def __init__(self, data: Any) -> None:
        given = {name: value for name, value in data.items() if value}
        super().__init__({**self.DEFAULTS, **given})

    @property
    def gpu_hour_nano(self) -> int:
        return int(self.cleaned_data["gpu_hour"] * 1_000_000_000)

    @property
    def load_share(self) -> Decimal:
        return Decimal(self.cleaned_data["load"]) / 100

"""The operator's page about what single organizations pay: volume tiers, discounts and agreed prices."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.errors import InvalidPrice, KeyReused
from billing.pricing import preview, selectors
from billing.pricing.services import ordered_tiers
from billing.pricing.volume import month_before
from portal import access
from portal.catalog import services
from portal.catalog.forms import AnyModelDiscountForm, TierFormSet, tier_forms
from portal.catalog.models import Model
from portal.organizations import selectors as organizations
from portal.pages import operator_page

SECTION = "operator_volume"
# Organizations shown in the preview of tiers.
PREVIEW_ROWS = 20


def _last_month() -> tuple[datetime, datetime]:
    this = timezone.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return month_before(this), this


@login_required
def page(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    return _page(request)


def _page(request: HttpRequest, status: int = 200, **extra: Any) -> HttpResponse:
    now = timezone.now()
    discounts, models = selectors.discounts(), {model.name: model for model in Model.objects.order_by("name")}
    agreed = [
        version
        for name in models
        for version in selectors.overrides(name)
        if not version.discount_basis_points and (version.effective_until is None or version.effective_until > now)
    ]
    ids = {row.organization_id for row in discounts} | {version.organization_id or 0 for version in agreed}
    by_id = organizations.organizations_by_id(sorted(ids))
    context = {
        "tier_forms": tier_forms(tiers=selectors.volume_tiers()),
        "discount_form": AnyModelDiscountForm(),
        "discounts": [
            (row, by_id[row.organization_id], row.effective_until is not None and row.effective_until <= now)
            for row in discounts
        ],
        "agreed": [(version, by_id[version.organization_id or 0], models[version.model]) for version in agreed],
    }
    return operator_page(request, SECTION, "portal/operator/volume.html", context | extra, status=status)


@login_required
@require_POST
def tiers(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    forms = tier_forms(request.POST)
    if not forms.is_valid():
        return _page(request, 400, tier_forms=forms)
    try:
        if "preview" in request.POST:
            return _page(request, tier_forms=forms, tiers_preview=_preview_of_tiers(forms))
        services.change_volume_tiers(tiers=forms.tiers(), actor=actor)
    except InvalidPrice as error:
        return _page(request, 400, tier_forms=forms, tiers_error=str(error))
    messages.success(request, _("The tiers are saved. What this month was given already stays."))
    return redirect("portal:operator_volume")


def _preview_of_tiers(forms: TierFormSet) -> dict[str, Any]:
    start, end = _last_month()
    wanted = ordered_tiers(forms.tiers())
    found = preview.preview_tiers(tiers=wanted, start=start, end=end, now=timezone.now())
    by_id = organizations.organizations_by_id([row.change.organization_id for row in found[:PREVIEW_ROWS]])
    return {
        "rows": [(row, by_id[row.change.organization_id]) for row in found[:PREVIEW_ROWS]],
        "others": max(0, len(found) - PREVIEW_ROWS),
        "billed_nano": sum(row.change.billed_nano for row in found),
        "proposed_nano": sum(row.change.proposed_nano for row in found),
    }


@login_required
@require_POST
def discount(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = AnyModelDiscountForm(request.POST)
    if not form.is_valid():
        return _page(request, 400, discount_form=form)
    organization, model = form.cleaned_data["organization"], form.cleaned_data["model"]
    if "preview" in request.POST:
        start, end = _last_month()
        change = preview.preview_discount(
            organization_id=organization.id,
            basis_points=form.cleaned_data["percent"],
            start=start,
            end=end,
            now=timezone.now(),
            model=model.name if model else "",
        )
        return _page(request, discount_form=form, discount_preview=(change, organization))
    try:
        services.discount_price(
            key=str(form.cleaned_data["key"]),
            model=model,
            organization=organization,
            basis_points=form.cleaned_data["percent"],
            effective_from=timezone.now(),
            effective_until=form.cleaned_data["effective_until"],
            reason=form.cleaned_data["reason"],
            actor=actor,
        )
    except (InvalidPrice, KeyReused) as error:
        form.add_error(None, str(error))
        return _page(request, 400, discount_form=form)
    messages.success(request, _("The discount is given. It follows the list price while it lasts."))
    return redirect("portal:operator_volume")

"""The operator's page about what single organizations pay: volume tiers, discounts and agreed prices."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.errors import InvalidPrice, KeyReused
from billing.pricing import selectors
from billing.pricing.models import Discount
from portal import access
from portal.catalog import services
from portal.catalog.forms import AnyModelDiscountForm, DiscountEndForm, tier_forms
from portal.catalog.models import Model
from portal.operator import previews, rows
from portal.operator import selectors as operator
from portal.pages import operator_page

SECTION = "operator_volume"


@login_required
def page(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    return _page(request)


def _page(request: HttpRequest, status: int = 200, **extra: Any) -> HttpResponse:
    now = timezone.now()
    models = {model.name: model for model in Model.objects.order_by("name")}
    context = {
        "tier_forms": tier_forms(tiers=selectors.volume_tiers()),
        "discount_form": AnyModelDiscountForm(),
        "discounts": [(row, tenant, _end_form(row, now)) for row, tenant in operator.discounts()],
        "agreed": [(version, tenant, models[version.model]) for version, tenant in operator.agreed_prices(now)],
    }
    return operator_page(request, SECTION, "portal/operator/volume.html", context | extra, status=status)


def _end_form(discount: Discount, now: datetime) -> DiscountEndForm | None:
    """None: it is over."""
    is_over = discount.until is not None and discount.until <= now
    return None if is_over else DiscountEndForm(auto_id=f"discount-{discount.id}-%s")


@login_required
@require_POST
def tiers(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    forms = tier_forms(request.POST)
    if not forms.is_valid():
        return _page(request, 400, tier_forms=forms)
    try:
        if "preview" in request.POST:
            return _page(request, tier_forms=forms, tiers_preview=previews.of_tiers(forms.tiers()))
        services.change_volume_tiers(tiers=forms.tiers(), actor=actor)
    except InvalidPrice as error:
        return _page(request, 400, tier_forms=forms, tiers_error=str(error))
    messages.success(request, _("The tiers are saved. What this month was given already stays."))
    return redirect("portal:operator_volume")


@login_required
@require_POST
def discount(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = AnyModelDiscountForm(request.POST)
    if not form.is_valid():
        return _page(request, 400, discount_form=form)
    organization, model = form.cleaned_data["organization"], form.cleaned_data["model"]
    if "preview" in request.POST:
        change = previews.of_discount(organization=organization, model=model, basis_points=form.cleaned_data["percent"])
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


@login_required
@require_POST
def discount_end(request: HttpRequest, discount_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.discount(discount_id)
    form = DiscountEndForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Say why the discount ends."))
        return redirect("portal:operator_volume")
    try:
        services.stop_discount(discount=found, reason=form.cleaned_data["reason"], actor=actor)
    except InvalidPrice as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("The discount has ended. Calls that began before keep their price."))
    return redirect("portal:operator_volume")

"""The operator's pages about models, prices, deployments and engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.errors import InvalidPrice, KeyReused
from billing.pricing import selectors as pricing
from portal import access
from portal.catalog import selectors, services, status
from portal.catalog.forms import DeploymentForm, DiscountForm, ModelForm, PriceForm
from portal.catalog.models import Deployment, Model
from portal.operator import engine_facts, previews, rows
from portal.operator import selectors as operator
from portal.pages import operator_page

SECTION = "operator_models"


@login_required
def models(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    now = timezone.now()
    enabled = selectors.deployments(is_enabled=True)
    statuses = status.read(deployment.id for deployment in enabled)
    counts = Counter(deployment.model for deployment in enabled)
    down = Counter(deployment.model for deployment in status.silent(enabled, statuses))
    listed = [
        (model, pricing.current_price(model.name, now), counts[model.name], down[model.name])
        for model in selectors.all_models()
    ]
    return operator_page(request, SECTION, "portal/operator/models.html", {"rows": listed})


@login_required
def model_new(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = ModelForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        saved = services.save_model(model=form.save(commit=False), actor=actor)
        messages.success(request, _("The model is added. Give it a price and a deployment."))
        return redirect("portal:operator_model", saved.id)
    return operator_page(
        request, SECTION, "portal/operator/model_new.html", {"form": form}, status=400 if form.errors else 200
    )


@login_required
def model(request: HttpRequest, model_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = ModelForm(request.POST or None, instance=rows.model(model_id))
    if request.method == "POST" and form.is_valid():
        services.save_model(model=form.save(commit=False), actor=actor)
        messages.success(request, _("The model is saved."))
        return redirect("portal:operator_model", model_id)
    # Read again: the form has put what was refused into its own.
    return _model_page(request, rows.model(model_id), form=form)


@login_required
@require_POST
def discount(request: HttpRequest, model_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.model(model_id)
    form = DiscountForm(request.POST)
    if form.is_valid():
        try:
            services.discount_price(
                key=str(form.cleaned_data["key"]),
                model=found,
                organization=form.cleaned_data["organization"],
                basis_points=form.cleaned_data["percent"],
                effective_from=timezone.now(),
                effective_until=form.cleaned_data["effective_until"],
                reason=form.cleaned_data["reason"],
                actor=actor,
            )
        except (InvalidPrice, KeyReused) as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("The discount is given. It follows the list price while it lasts."))
            return redirect("portal:operator_model", model_id)
    return _model_page(request, found, discount_form=form)


def _model_page(request: HttpRequest, found: Model, **extra: Any) -> HttpResponse:
    deployments = selectors.deployments(model=found)
    now = timezone.now()
    context = {
        "model": found,
        "form": ModelForm(instance=found),
        "price_form": PriceForm(initial={"seen_price_id": pricing.newest_id(found.name)}),
        "price": pricing.current_price(found.name, now),
        "discount_form": DiscountForm(),
        "history": pricing.price_history(found.name),
        "overrides": operator.overrides(found.name),
        "now": now,
        "deployments": deployments,
        "statuses": status.read(deployment.id for deployment in deployments),
    }
    is_refused = "price_changes" in extra or any(form.errors for name, form in extra.items() if name != "preview")
    return operator_page(
        request, SECTION, "portal/operator/model.html", context | extra, status=400 if is_refused else 200
    )


@login_required
@require_POST
def price(request: HttpRequest, model_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.model(model_id)
    form = PriceForm(request.POST)
    if form.is_valid() and "preview" in request.POST:
        preview = previews.of_price(
            found,
            form.figures(),
            organization=form.cleaned_data["organization"],
            currency=form.cleaned_data["currency"],
        )
        return _model_page(request, found, price_form=form, preview=preview)
    if form.is_valid():
        try:
            services.change_price(
                model=found,
                **asdict(form.figures()),
                effective_from=form.cleaned_data["effective_from"],
                effective_until=form.cleaned_data["effective_until"],
                organization=form.cleaned_data["organization"],
                currency=form.cleaned_data["currency"],
                seen_price_id=form.cleaned_data["seen_price_id"],
                actor=actor,
            )
        except services.PriceChanged as error:
            # Who sends the form again has seen what it replaces.
            form.data = request.POST.copy()
            form.data["seen_price_id"] = str(pricing.newest_id(found.name))
            return _model_page(request, found, price_form=form, price_changes=error.changes)
        except InvalidPrice as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("The price is set. Earlier calls keep theirs."))
            return redirect("portal:operator_model", model_id)
    return _model_page(request, found, price_form=form)


@login_required
def deployment_new(request: HttpRequest, model_id: int) -> HttpResponse:
    access.require_operator(request.user)
    return _deployment_form(request, rows.new_deployment(rows.model(model_id)))


@login_required
def deployment(request: HttpRequest, deployment_id: int) -> HttpResponse:
    access.require_operator(request.user)
    return _deployment_form(request, rows.deployment(deployment_id))


def _deployment_form(request: HttpRequest, found: Deployment) -> HttpResponse:
    form = DeploymentForm(request.POST or None, instance=found)
    if request.method == "POST" and form.is_valid():
        services.save_deployment(deployment=form.save(commit=False), actor=access.require_operator(request.user))
        messages.success(request, _("The deployment is saved; the gateways follow within seconds."))
        return redirect("portal:operator_model", found.model_id)
    context = {"form": form, "deployment": found, "model": found.model}
    return operator_page(
        request, SECTION, "portal/operator/deployment.html", context, status=400 if form.errors else 200
    )


@login_required
def engines(request: HttpRequest) -> HttpResponse:
    """Renewed by itself every few seconds: an htmx request gets the table alone."""
    access.require_operator(request.user)
    deployments = selectors.deployments()
    statuses = status.read(each.id for each in deployments)
    listed = [
        (each, found, engine_facts.told(found.facts) if found else [])
        for each in deployments
        for found in (statuses.get(each.id),)
    ]
    template = "portal/operator/_engines.html" if request.headers.get("HX-Request") else "portal/operator/engines.html"
    return operator_page(request, "operator_engines", template, {"rows": listed})

"""The models that callers may name, with context, prices, and how they run."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from portal import access
from portal.billing_pages import usage_charts
from portal.catalog.offers import NOT_MEASURED, find_offer, offers, price_chart, speeds
from portal.home.snippets import make_snippets
from portal.pages import member_page


def public_catalog(request: HttpRequest) -> HttpResponse:
    return render(request, "portal/catalog/public.html", {"offers": offers(), "speeds": speeds()})


def public_model(request: HttpRequest, model_name: str) -> HttpResponse:
    return render(request, "portal/catalog/public_model.html", _context(model_name, None))


@login_required
def catalog(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    context = {"offers": offers(member.organization_id), "speeds": speeds()}
    return member_page(request, member, "catalog", "portal/catalog/catalog.html", context)


@login_required
def model(request: HttpRequest, slug: str, model_name: str) -> HttpResponse:
    """One model, with the organization's own price and its use."""
    member = access.member_for(request.user, slug)
    context = _context(model_name, member.organization_id) | {
        "chart": usage_charts.card_of_any_period(only=urlencode({"model": model_name}))
    }
    return member_page(request, member, "catalog", "portal/catalog/model.html", context)


def _context(name: str, organization_id: int | None) -> dict[str, Any]:
    offer = find_offer(name, organization_id)
    if offer is None:
        raise Http404("No such model.")
    return {
        "offer": offer,
        "speed": speeds().get(name, NOT_MEASURED),
        "price_chart": price_chart(offer),
        "snippets": make_snippets(name),
    }

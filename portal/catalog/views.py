"""The models that callers may name, with context and prices."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from billing.pricing import selectors as pricing
from billing.pricing.selectors import PriceInfo
from portal import access
from portal.catalog import selectors
from portal.catalog.selectors import ModelInfo
from portal.pages import member_page


@dataclass(frozen=True, slots=True)
class Offer:
    """A model as it is offered. `history` are the list price's other versions, scheduled ones included."""

    model: ModelInfo
    price: PriceInfo | None
    history: list[PriceInfo]
    is_served: bool


def offers(organization_id: int | None = None) -> list[Offer]:
    now = timezone.now()
    served = {deployment.model for deployment in selectors.enabled_deployments()}
    result = []
    for model in selectors.published_models():
        price = pricing.current_price(model.name, now, organization_id)
        history = [version for version in pricing.price_history(model.name) if version != price]
        result.append(Offer(model, price, history, model.name in served))
    return result


def public_catalog(request: HttpRequest) -> HttpResponse:
    return render(request, "portal/catalog/public.html", {"offers": offers()})


@login_required
def catalog(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    context = {"offers": offers(member.organization_id)}
    return member_page(request, member, "catalog", "portal/catalog/catalog.html", context)

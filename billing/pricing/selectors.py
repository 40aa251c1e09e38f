"""Which price applies when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Q

from billing.pricing.models import Price


@dataclass(frozen=True)
class PriceInfo:
    """Nano-units per million tokens, one version of a model's price."""

    price_id: int
    model: str
    input_nano: int
    cached_input_nano: int | None
    output_nano: int
    currency: str
    effective_from: datetime
    organization_id: int | None = None


def _info(price: Price) -> PriceInfo:
    return PriceInfo(
        price.id,
        price.model,
        price.input_nano,
        price.cached_input_nano,
        price.output_nano,
        price.currency,
        price.effective_from,
        price.organization_id,
    )


def current_price(model_name: str, at: datetime, organization_id: int | None = None) -> PriceInfo | None:
    """The version in force `at`: the organization's own if it has one, else the list price. None: not for sale."""
    chosen = (
        Price.objects.filter(model=model_name, effective_from__lte=at)
        .filter(Q(organization__isnull=True) | Q(organization_id=organization_id))
        .order_by(F("organization_id").asc(nulls_last=True), "-effective_from")
        .first()
    )
    return _info(chosen) if chosen else None


def price_by_id(price_id: int) -> PriceInfo | None:
    price = Price.objects.filter(id=price_id).first()
    return _info(price) if price else None


def price_history(model_name: str, organization_id: int | None = None) -> list[PriceInfo]:
    """All versions, newest first, scheduled ones included."""
    owner = Q(organization_id=organization_id) if organization_id else Q(organization__isnull=True)
    rows = Price.objects.filter(owner, model=model_name).order_by("-effective_from")
    return [_info(row) for row in rows]

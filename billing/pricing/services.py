"""New price versions; an old one is never edited."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q

from billing.errors import InvalidPrice
from billing.money import MINOR_DIGITS
from billing.pricing.models import Price


@transaction.atomic
def set_price(
    *,
    model: str,
    input_nano: int,
    cached_input_nano: int | None,
    output_nano: int,
    effective_from: datetime,
    actor_id: int | None,
    currency: str = "USD",
    organization_id: int | None = None,
) -> Price:
    """A version in force from `effective_from` on, for all or for one organization.

    Calls already opened keep the price they were opened at. A repeat with the same figures returns the same version;
    other figures for the same date are refused: pick a later date.
    """
    for field, value in (
        ("input_nano", input_nano),
        ("cached_input_nano", cached_input_nano),
        ("output_nano", output_nano),
    ):
        if value is not None and value < 0:
            raise InvalidPrice(field, f"{field} is {value}; a price cannot be below zero.")
    if currency not in MINOR_DIGITS:
        raise InvalidPrice("currency", f"{currency!r} is not one of {', '.join(MINOR_DIGITS)}.")
    figures = {
        "input_nano": input_nano,
        "cached_input_nano": cached_input_nano,
        "output_nano": output_nano,
        "currency": currency,
    }
    versions = Price.objects.filter(model=model, effective_from=effective_from)
    of_owner = versions.filter(Q(organization_id=organization_id) if organization_id else Q(organization__isnull=True))
    price = of_owner.first()
    if price is None:
        return Price.objects.create(
            model=model,
            organization_id=organization_id,
            effective_from=effective_from,
            actor_id=actor_id,
            input_nano=input_nano,
            cached_input_nano=cached_input_nano,
            output_nano=output_nano,
            currency=currency,
        )
    if any(getattr(price, field) != value for field, value in figures.items()):
        raise InvalidPrice(
            "effective_from",
            f"{model} already has a price from {effective_from:%Y-%m-%d %H:%M:%S %Z}; pick a later date.",
        )
    return price

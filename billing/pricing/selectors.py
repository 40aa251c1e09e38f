"""Which price applies when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import F, Q

from billing.accounts.models import BillingAccount
from billing.pricing.models import Discount, Price, VolumeTier


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
    cache_write_nano: int | None = None
    reasoning_nano: int | None = None
    minimum_nano: int = 0
    effective_until: datetime | None = None
    # Of the list price, where a discount made this version; else 0.
    discount_basis_points: int = 0


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
        price.cache_write_nano,
        price.reasoning_nano,
        price.minimum_nano,
        until_of(price),
        price.discount.basis_points if price.discount else 0,
    )


def until_of(price: Price) -> datetime | None:
    """When the version is out of force, for good or because its discount ended; None: never."""
    moments = (price.effective_until, price.discount.until if price.discount else None)
    return min((moment for moment in moments if moment is not None), default=None)


def in_force(at: datetime) -> Q:
    """Of prices. That of a discount stops with it, also where it ends before its time."""
    lasts = Q(effective_until__isnull=True) | Q(effective_until__gt=at)
    return Q(effective_from__lte=at) & lasts & (Q(discount__end__isnull=True) | Q(discount__end__ends_at__gt=at))


def currency_of(organization_id: int | None) -> str:
    """That of the organization's account; of nobody the first that is sold in."""
    accounts = BillingAccount.objects.filter(organization_id=organization_id) if organization_id else None
    found = accounts.values_list("currency", flat=True).first() if accounts is not None else None
    return found or str(settings.BILLING_CURRENCIES[0])


def current_price(
    model_name: str, at: datetime, organization_id: int | None = None, *, currency: str = ""
) -> PriceInfo | None:
    """The version in force `at`: the organization's own if it has one, else the list price. None: not for sale.

    Only prices in the organization's currency count, or in the one given: nothing is converted. Of several in force the
    one that began last counts, so what a version with an end had replaced comes back after it.
    """
    chosen = (
        Price.objects.filter(in_force(at), model=model_name, currency=currency or currency_of(organization_id))
        .filter(Q(organization__isnull=True) | Q(organization_id=organization_id))
        .select_related("discount__end")
        .order_by(F("organization_id").asc(nulls_last=True), "-effective_from")
        .first()
    )
    return _info(chosen) if chosen else None


def price_by_id(price_id: int) -> PriceInfo | None:
    price = Price.objects.filter(id=price_id).select_related("discount__end").first()
    return _info(price) if price else None


def price_history(model_name: str, organization_id: int | None = None) -> list[PriceInfo]:
    """All versions, newest first, scheduled ones included."""
    owner = Q(organization_id=organization_id) if organization_id else Q(organization__isnull=True)
    rows = Price.objects.filter(owner, model=model_name).select_related("discount__end").order_by("-effective_from")
    return [_info(row) for row in rows]


def newest_id(model_name: str) -> int:
    """Of all versions for the model, whosever they are: what is set from now on has a higher one. 0: there is none."""
    newest = Price.objects.filter(model=model_name).order_by("-id").values_list("id", flat=True).first()
    return newest or 0


def set_since(price_id: int, model_name: str, *, organization_id: int | None, currency: str) -> list[Price]:
    """Versions with a higher id, of the list price in a currency or of one organization's price; oldest first."""
    owner = Q(organization_id=organization_id) if organization_id else Q(organization__isnull=True)
    rows = Price.objects.filter(owner, model=model_name, id__gt=price_id)
    return list(rows.filter(currency=currency or currency_of(organization_id)).order_by("id"))


def overrides(model_name: str) -> list[PriceInfo]:
    """The versions of single organizations for a model, newest first: agreed prices and discounts."""
    rows = Price.objects.filter(model=model_name, organization__isnull=False).select_related("discount__end")
    return [_info(row) for row in rows.order_by("-effective_from", "organization_id")]


@dataclass(frozen=True)
class Tier:
    """From so many tokens in a month on, the next month is so much cheaper."""

    from_tokens: int
    basis_points: int


def volume_tiers() -> list[Tier]:
    return [Tier(row.from_tokens, row.basis_points) for row in VolumeTier.objects.all()]


def discounts() -> list[Discount]:
    """Newest first, those that are over included."""
    return list(Discount.objects.select_related("end").order_by("-effective_from", "-id"))


def running_discounts(discount_ids: Collection[int], *, at: datetime) -> dict[int, Discount]:
    """Those of these that are not over, by id. One query."""
    found = Discount.objects.select_related("end").filter(id__in=discount_ids)
    return {row.id: row for row in found if row.until is None or row.until > at}


def find_discount(discount_id: int) -> Discount | None:
    return Discount.objects.select_related("end").filter(id=discount_id).first()

"""New price versions; an old one is never edited.

A discount becomes price versions of its organization, at once and whenever a list price changes while it lasts. So what
a request pays is always one version, pinned on its record, and an invoice shows the price that was really paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from billing.errors import InvalidPrice, KeyReused
from billing.money import MINOR_DIGITS, divide_half_even
from billing.pricing.models import Discount, DiscountEnd, Price, VolumeTier
from billing.pricing.selectors import Tier, currency_of, in_force, until_of

WHOLE = 10_000  # basis points


@dataclass(frozen=True)
class Figures:
    """What a version says: nano-units per million tokens, the minimum per request. Unset: as the kind it is part of."""

    input_nano: int
    cached_input_nano: int | None
    output_nano: int
    cache_write_nano: int | None = None
    reasoning_nano: int | None = None
    minimum_nano: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise InvalidPrice(
                    name, _("%(name)s is %(value)s; a price cannot be below zero.") % {"name": name, "value": value}
                )

    def less(self, basis_points: int) -> Figures:
        """Each figure lower by so much, rounded half to even."""

        def reduced(value: int | None) -> int | None:
            return None if value is None else divide_half_even(value * (WHOLE - basis_points), WHOLE)

        return Figures(**{name: reduced(value) for name, value in asdict(self).items()})  # type: ignore[arg-type]  # None stays where it was


def _told(moment: datetime) -> str:
    """In the reader's zone: UTC for programs."""
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S %Z}"


def figures_of(price: Price) -> Figures:
    return Figures(**{name: getattr(price, name) for name in Figures.__dataclass_fields__})


@transaction.atomic
def set_price(
    *,
    model: str,
    input_nano: int,
    cached_input_nano: int | None,
    output_nano: int,
    effective_from: datetime,
    actor_id: int | None,
    currency: str = "",
    organization_id: int | None = None,
    cache_write_nano: int | None = None,
    reasoning_nano: int | None = None,
    minimum_nano: int = 0,
    effective_until: datetime | None = None,
) -> Price:
    """A version in force from `effective_from` on, until `effective_until` if given, for all or for one organization.

    `currency` empty: the organization's, of a list price the first that is sold in. A model has a list price in each.

    Calls already opened keep the price they were opened at. A repeat with the same figures returns the same version;
    other figures for the same date are refused: pick a later date.
    """
    figures = Figures(input_nano, cached_input_nano, output_nano, cache_write_nano, reasoning_nano, minimum_nano)
    own_currency = currency_of(organization_id)
    currency = currency or own_currency
    if currency not in MINOR_DIGITS:
        known = ", ".join(MINOR_DIGITS)
        raise InvalidPrice(
            "currency", _("%(code)s is not one of %(known)s.") % {"code": repr(currency), "known": known}
        )
    if organization_id is not None and currency != own_currency:
        raise InvalidPrice(
            "currency", _("The organization pays in %(currency)s; nothing is converted.") % {"currency": own_currency}
        )
    if effective_until is not None and effective_until <= effective_from:
        raise InvalidPrice("effective_until", _("A price must end after it begins."))
    price = _version(model, organization_id, figures, currency, effective_from, effective_until, actor_id)
    if organization_id is None:
        discounts = Discount.objects.filter(
            Q(model="") | Q(model=model), organization__billing_account__currency=currency
        )
        for discount in discounts.select_related("end").order_by("-effective_from", "-id"):
            _apply(discount, price)
    return price


def _version(
    model: str,
    organization_id: int | None,
    figures: Figures,
    currency: str,
    effective_from: datetime,
    effective_until: datetime | None,
    actor_id: int | None,
    discount: Discount | None = None,
) -> Price:
    owner = Q(organization_id=organization_id) if organization_id else Q(organization__isnull=True)
    said = {**asdict(figures), "effective_until": effective_until}
    price = Price.objects.filter(owner, model=model, currency=currency, effective_from=effective_from).first()
    if price is None:
        return Price.objects.create(
            model=model,
            organization_id=organization_id,
            currency=currency,
            effective_from=effective_from,
            actor_id=actor_id,
            discount=discount,
            **said,
        )
    if any(getattr(price, field) != value for field, value in said.items()):
        raise InvalidPrice(
            "effective_from",
            _("%(model)s already has a price from %(moment)s; pick a later date.")
            % {"model": model, "moment": _told(effective_from)},
        )
    return price


@transaction.atomic
def give_discount(
    *,
    key: str,
    organization_id: int,
    basis_points: int,
    effective_from: datetime,
    reason: str,
    effective_until: datetime | None = None,
    model: str = "",
    actor_id: int | None = None,
) -> Discount:
    """So much off every list price (or off one model's) for the organization. Once per `key`: a repeat returns it.

    An agreed price of the organization's own beats a discount; of two discounts the one that began last counts.
    """
    if not 1 <= basis_points <= WHOLE:
        raise InvalidPrice(
            "basis_points",
            _("%(given)s is not between 1 and %(whole)s; 1000 is 10 %%.") % {"given": basis_points, "whole": WHOLE},
        )
    if effective_until is not None and effective_until <= effective_from:
        raise InvalidPrice("effective_until", _("A discount must end after it begins."))
    discount, is_new = Discount.objects.get_or_create(
        key=key,
        defaults={
            "organization_id": organization_id,
            "model": model,
            "basis_points": basis_points,
            "effective_from": effective_from,
            "effective_until": effective_until,
            "reason": reason,
            "actor_id": actor_id,
        },
    )
    if (discount.organization_id, discount.model, discount.basis_points) != (organization_id, model, basis_points):
        raise KeyReused(key, "discount")
    if is_new:
        for price in _list_prices(discount):
            _apply(discount, price)
    return discount


def _list_prices(discount: Discount) -> QuerySet[Price]:
    prices = Price.objects.filter(organization__isnull=True, currency=currency_of(discount.organization_id))
    return (prices.filter(model=discount.model) if discount.model else prices).order_by("effective_from", "id")


@transaction.atomic
def end_discount(*, discount_id: int, at: datetime, reason: str, actor_id: int | None = None) -> DiscountEnd:
    """The discount stops `at`; a repeat returns the first end. Calls that began before keep their price.

    What it had replaced comes back: an earlier discount that still lasts, or the list price. Raises InvalidPrice where
    it is over by then.
    """
    discount = Discount.objects.select_for_update().get(id=discount_id)
    end = DiscountEnd.objects.filter(discount=discount).first()
    if end is not None:
        return end
    if discount.effective_until is not None and discount.effective_until <= at:
        over = _("The discount is over since %(moment)s.") % {"moment": _told(discount.effective_until)}
        raise InvalidPrice("discount", over)
    end = DiscountEnd.objects.create(discount=discount, ends_at=at, reason=reason, actor_id=actor_id)
    others = Discount.objects.filter(organization_id=discount.organization_id).exclude(id=discount.id)
    for other in others.select_related("end").order_by("-effective_from", "-id"):
        for price in _list_prices(other):
            _apply(other, price, not_before=at)
    return end


def _apply(discount: Discount, price: Price, *, not_before: datetime | None = None) -> None:
    """The organization's version of a list price for the time in which both are in force, if there is any.

    It begins after whatever comes before it: an agreed price, or a discount that began later.
    """
    start = max(discount.effective_from, price.effective_from, not_before or discount.effective_from)
    own = Price.objects.filter(
        organization_id=discount.organization_id, model=price.model, currency=price.currency
    ).select_related("discount__end")
    first = Q(discount__isnull=True) | Q(discount__effective_from__gt=discount.effective_from)
    first |= Q(discount__effective_from=discount.effective_from, discount_id__gt=discount.id)
    while (above := own.filter(first, in_force(start)).first()) is not None:
        end = until_of(above)
        if end is None:
            return
        start = end
    until = min((end for end in (discount.until, price.effective_until) if end is not None), default=None)
    if until is not None and until <= start:
        return
    later = Price.objects.filter(organization__isnull=True, model=price.model, currency=price.currency)
    if later.filter(in_force(start), effective_from__gt=price.effective_from).exists():
        return
    if own.filter(in_force(start), discount=discount, effective_from__gte=price.effective_from).exists():
        return
    while own.filter(effective_from=start).exists():
        # Of an earlier discount, for a list price to come: of two versions the one that begins last counts.
        start += timedelta.resolution
    figures = figures_of(price).less(discount.basis_points)
    _version(price.model, discount.organization_id, figures, price.currency, start, until, discount.actor_id, discount)


def ordered_tiers(tiers: Sequence[Tier]) -> list[Tier]:
    """Lowest first. Raises InvalidPrice unless each tier gives more than the one below it."""
    ordered = sorted(tiers, key=lambda tier: tier.from_tokens)
    for lower, higher in pairwise(ordered):
        if lower.from_tokens == higher.from_tokens or lower.basis_points >= higher.basis_points:
            raise InvalidPrice(
                "tiers",
                _("From %(tokens)s tokens on, the discount must be higher than below.")
                % {"tokens": number_format(higher.from_tokens, force_grouping=True)},
            )
    for tier in ordered:
        if tier.from_tokens <= 0 or not 1 <= tier.basis_points <= WHOLE:
            raise InvalidPrice(
                "tiers",
                _("A tier begins above 0 tokens and gives 1 to %(whole)s basis points.") % {"whole": WHOLE},
            )
    return ordered


@transaction.atomic
def set_volume_tiers(tiers: Sequence[Tier]) -> None:
    """Replace the tiers; months that began keep what they have. Raises InvalidPrice as `ordered_tiers` does."""
    ordered = ordered_tiers(tiers)
    VolumeTier.objects.all().delete()
    VolumeTier.objects.bulk_create(VolumeTier(**asdict(tier)) for tier in ordered)

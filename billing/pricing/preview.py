"""What a price, a discount or tiers would have brought: last month's calls at other figures, before these are saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection

from billing.money import TOKENS_PER_PRICE
from billing.pricing.models import Discount, Price
from billing.pricing.selectors import Tier, currency_of, in_force
from billing.pricing.services import Figures, figures_of
from billing.pricing.volume import VOLUME_KEY, month_before, reached, volumes


@dataclass(frozen=True)
class Change:
    """One organization's calls: as they were billed, and as they would have been."""

    organization_id: int
    requests: int
    billed_nano: int
    proposed_nano: int

    def __add__(self, other: Change) -> Change:
        return Change(
            self.organization_id,
            self.requests + other.requests,
            self.billed_nano + other.billed_nano,
            self.proposed_nano + other.proposed_nano,
        )

    @property
    def difference_nano(self) -> int:
        return self.proposed_nano - self.billed_nano


@dataclass(frozen=True)
class Preview:
    start: datetime
    end: datetime
    # The largest differences first.
    changes: list[Change]

    @property
    def requests(self) -> int:
        return sum(change.requests for change in self.changes)

    @property
    def billed_nano(self) -> int:
        return sum(change.billed_nano for change in self.changes)

    @property
    def proposed_nano(self) -> int:
        return sum(change.proposed_nano for change in self.changes)


# Rounds as `money.divide_half_even` does, for what is not below zero.
_COST = """
(div({amount}, {whole}) + CASE WHEN 2 * mod({amount}, {whole}) > {whole}
    OR 2 * mod({amount}, {whole}) = {whole} AND mod(div({amount}, {whole}), 2) = 1 THEN 1 ELSE 0 END)
"""
_PREVIEW = """
SELECT organization_id, COUNT(*), SUM(billed)::bigint,
       SUM(CASE WHEN prompt_tokens + completion_tokens > 0 THEN GREATEST(tokens_cost, %(minimum_nano)s)
                ELSE tokens_cost END)::bigint
  FROM (SELECT organization_id, cost_nano AS billed, prompt_tokens, completion_tokens, {cost} AS tokens_cost
          FROM billing_usage_record record
         WHERE model = %(model)s AND started_at >= %(start)s AND started_at < %(end)s
           AND status IN ('completed', 'cancelled')
           AND (%(organization_id)s::bigint IS NULL OR organization_id = %(organization_id)s)
           AND price_id IS NOT NULL AND ({whom})) calls
 GROUP BY organization_id
"""
# A new list price does not touch who has a price of their own.
_LIST = (
    "EXISTS (SELECT 1 FROM billing_price price WHERE price.id = record.price_id AND price.organization_id IS NULL"
    " AND price.currency = '{currency}')"
)
# An agreed price beats every discount, and a discount that an operator gave beats the tiers' own.
_NOT_AGREED = (
    "EXISTS (SELECT 1 FROM billing_price price WHERE price.id = record.price_id"
    " AND (price.organization_id IS NULL OR price.discount_id IS NOT NULL))"
)
_BY_TIERS = f"""
EXISTS (SELECT 1 FROM billing_price price LEFT JOIN billing_discount discount ON discount.id = price.discount_id
         WHERE price.id = record.price_id
           AND (price.organization_id IS NULL OR starts_with(discount.key, '{VOLUME_KEY}')))
"""  # noqa: S608 - constants only


def preview_price(
    *,
    model: str,
    figures: Figures,
    start: datetime,
    end: datetime,
    organization_id: int | None = None,
    currency: str = "",
) -> Preview:
    """Rate every billed call of the model that started in [start, end) at `figures`, exactly as `rating.rate` would.

    With an organization: all of its calls, whatever they paid. Without: the calls that paid the list price.
    """
    listed = _LIST.format(currency=currency or currency_of(None))
    changes = _rate(model, figures, start, end, organization_id, "true" if organization_id else listed)
    return Preview(start, end, sorted(changes, key=lambda change: -abs(change.difference_nano)))


def preview_discount(
    *,
    organization_id: int,
    basis_points: int,
    start: datetime,
    end: datetime,
    now: datetime,
    model: str = "",
    of_tiers: bool = False,
) -> Change:
    """Every billed call of [start, end) that an agreed price does not settle, at so much off the list price of `now`.

    `model` empty: of all models. With `of_tiers` a discount that an operator gave settles a call too, as it beats the
    tiers' own.
    """
    names = [model] if model else list(Price.objects.order_by("model").values_list("model", flat=True).distinct())
    total, currency = Change(organization_id, 0, 0, 0), currency_of(organization_id)
    for name in names:
        listed = Price.objects.filter(in_force(now), model=name, organization__isnull=True, currency=currency)
        price = listed.order_by("-effective_from").first()
        if price is None:
            continue
        figures = figures_of(price).less(basis_points) if basis_points else figures_of(price)
        for change in _rate(name, figures, start, end, organization_id, _BY_TIERS if of_tiers else _NOT_AGREED):
            total = total + change
    return total


@dataclass(frozen=True)
class TierChange:
    """What tiers would have given one organization: for so many tokens in the month before."""

    tokens: int
    basis_points: int
    change: Change

    @property
    def percent(self) -> Decimal:
        return Decimal(self.basis_points).scaleb(-2)


def preview_tiers(*, tiers: Sequence[Tier], start: datetime, end: datetime, now: datetime) -> list[TierChange]:
    """The calls of [start, end), a month, as they would have been billed under the tiers; largest differences first.

    Organizations that reach no tier are in it where the present tiers gave them something.
    """
    before = dict(volumes(month_before(start), start, at_least=min((tier.from_tokens for tier in tiers), default=1)))
    given = Discount.objects.filter(key__startswith=VOLUME_KEY, effective_from__lt=end, effective_until__gt=start)
    wanted = {number: reached(tiers, tokens).basis_points for number, tokens in before.items() if tiers}
    found = [
        TierChange(
            before.get(organization_id, 0),
            wanted.get(organization_id, 0),
            preview_discount(
                organization_id=organization_id,
                basis_points=wanted.get(organization_id, 0),
                start=start,
                end=end,
                now=now,
                of_tiers=True,
            ),
        )
        for organization_id in sorted({*wanted, *given.values_list("organization_id", flat=True)})
    ]
    return sorted(found, key=lambda row: -abs(row.change.difference_nano))


def _rate(
    model: str, figures: Figures, start: datetime, end: datetime, organization_id: int | None, whom: str
) -> list[Change]:
    """By organization, of the calls that `whom` takes."""
    written = "0" if figures.cache_write_nano is None else "cache_write_tokens"
    reasoned = "0" if figures.reasoning_nano is None else "reasoning_tokens"
    rates = {
        f"prompt_tokens - cached_tokens - {written}": figures.input_nano,
        "cached_tokens": figures.input_nano if figures.cached_input_nano is None else figures.cached_input_nano,
        written: figures.cache_write_nano or 0,
        f"completion_tokens - {reasoned}": figures.output_nano,
        reasoned: figures.reasoning_nano or 0,
    }
    cost = " + ".join(
        _COST.format(amount=f"(({tokens}) * {rate_nano:d}::numeric)", whole=TOKENS_PER_PRICE)
        for tokens, rate_nano in rates.items()
        if rate_nano
    )
    query = _PREVIEW.format(cost=cost or "0::numeric", whom=whom)
    values: dict[str, Any] = {"minimum_nano": figures.minimum_nano, "model": model, "start": start, "end": end}
    with connection.cursor() as cursor:
        cursor.execute(query, {**values, "organization_id": organization_id})
        return [Change(*row) for row in cursor.fetchall()]

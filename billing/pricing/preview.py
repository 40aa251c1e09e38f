"""What a price would have brought: last month's calls at other figures, before the figures are saved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from billing.money import TOKENS_PER_PRICE
from billing.pricing.services import Figures


@dataclass(frozen=True)
class Change:
    """One organization's calls: as they were billed, and as they would have been."""

    organization_id: int
    requests: int
    billed_nano: int
    proposed_nano: int

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
_LIST = "EXISTS (SELECT 1 FROM billing_price price WHERE price.id = record.price_id AND price.organization_id IS NULL)"


def preview_price(
    *, model: str, figures: Figures, start: datetime, end: datetime, organization_id: int | None = None
) -> Preview:
    """Rate every billed call of the model that started in [start, end) at `figures`, exactly as `rating.rate` would.

    With an organization: all of its calls, whatever they paid. Without: the calls that paid the list price.
    """
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
    query = _PREVIEW.format(cost=cost or "0::numeric", whom="true" if organization_id else _LIST)
    values: dict[str, Any] = {"minimum_nano": figures.minimum_nano, "model": model, "start": start, "end": end}
    with connection.cursor() as cursor:
        cursor.execute(query, {**values, "organization_id": organization_id})
        changes = [Change(*row) for row in cursor.fetchall()]
    return Preview(start, end, sorted(changes, key=lambda change: -abs(change.difference_nano)))

"""What tokens cost: pure, and the only place where a count meets a price."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from billing.money import token_cost_nano


class Rates(Protocol):
    """Nano-units per million tokens; `minimum_nano` is of a whole request.

    An unset rate is that of the kind it is a part of: cached input and cache writes cost what input costs, reasoning
    what output costs.
    """

    @property
    def input_nano(self) -> int: ...
    @property
    def cached_input_nano(self) -> int | None: ...
    @property
    def cache_write_nano(self) -> int | None: ...
    @property
    def output_nano(self) -> int: ...
    @property
    def reasoning_nano(self) -> int | None: ...
    @property
    def minimum_nano(self) -> int: ...


class RatedCost(NamedTuple):
    """By kind. Where reasoning has no rate of its own, it is in the output; a cache write likewise in the input."""

    input_nano: int
    cached_nano: int
    output_nano: int
    cache_write_nano: int = 0
    reasoning_nano: int = 0
    # What the request's minimum adds.
    minimum_nano: int = 0

    @property
    def total_nano(self) -> int:
        return sum(self)

    def __sub__(self, other: RatedCost) -> RatedCost:
        return RatedCost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


FREE = RatedCost(0, 0, 0)


def cached_rate_nano(price: Rates) -> int:
    return price.input_nano if price.cached_input_nano is None else price.cached_input_nano


def rates_by_kind(price: Rates) -> dict[str, int]:
    """Nano-units per million tokens by the kinds of an invoice's lines; the minimum's is per request."""
    return {
        "input": price.input_nano,
        "cached_input": cached_rate_nano(price),
        "cache_write": price.input_nano if price.cache_write_nano is None else price.cache_write_nano,
        "output": price.output_nano,
        "reasoning": price.output_nano if price.reasoning_nano is None else price.reasoning_nano,
        "minimum": price.minimum_nano,
    }


# Tokens and cost by the same kinds, of a row `part` with the counts and costs of records and its price as `price`:
# each token stands once, in the kind that it was paid as.
KINDS_SQL = """
(VALUES ('input', part.prompt_tokens - part.cached_tokens
            - CASE WHEN price.cache_write_nano IS NULL THEN 0 ELSE part.cache_write_tokens END, part.input_cost_nano),
        ('cached_input', part.cached_tokens, part.cached_cost_nano),
        ('cache_write', CASE WHEN price.cache_write_nano IS NULL THEN 0 ELSE part.cache_write_tokens END,
            part.cache_write_cost_nano),
        ('output', part.completion_tokens
            - CASE WHEN price.reasoning_nano IS NULL THEN 0 ELSE part.reasoning_tokens END, part.output_cost_nano),
        ('reasoning', CASE WHEN price.reasoning_nano IS NULL THEN 0 ELSE part.reasoning_tokens END,
            part.reasoning_cost_nano),
        ('minimum', 0, part.minimum_cost_nano))
"""


def rate(
    price: Rates,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    reasoning_tokens: int = 0,
    cache_write_tokens: int = 0,
) -> RatedCost:
    """The cost by token kind. Prompt tokens include the cached ones and those written to the cache, completion tokens
    the reasoning ones; each token is paid once, at the rate of its kind.

    Each kind is rounded to a nano-unit, half to even. A request that used any token costs at least the minimum.
    """
    is_odd = min(cached_tokens, cache_write_tokens, reasoning_tokens) < 0
    if is_odd or cached_tokens + cache_write_tokens > prompt_tokens or reasoning_tokens > completion_tokens:
        raise ValueError(
            f"prompt {prompt_tokens}, cached {cached_tokens}, written to the cache {cache_write_tokens}, completion"
            f" {completion_tokens}, reasoning {reasoning_tokens}: cached must be within prompt, reasoning within"
            " completion, and none below zero."
        )
    written = 0 if price.cache_write_nano is None else cache_write_tokens
    reasoned = 0 if price.reasoning_nano is None else reasoning_tokens
    cost = RatedCost(
        token_cost_nano(prompt_tokens - cached_tokens - written, price.input_nano),
        token_cost_nano(cached_tokens, cached_rate_nano(price)),
        token_cost_nano(completion_tokens - reasoned, price.output_nano),
        token_cost_nano(written, price.cache_write_nano or 0),
        token_cost_nano(reasoned, price.reasoning_nano or 0),
    )
    missing_nano = price.minimum_nano - cost.total_nano
    if missing_nano > 0 and prompt_tokens + completion_tokens:
        return cost._replace(minimum_nano=missing_nano)
    return cost


def hold_nano(price: Rates, prompt_upper_bound: int, max_tokens_total: int) -> int:
    """An upper bound on the cost of a call: its whole prompt at the dearest input rate, and all it may produce at the
    dearer output rate, or the minimum."""
    dearest_input = max(price.input_nano, cached_rate_nano(price), price.cache_write_nano or 0)
    dearest_output = max(price.output_nano, price.reasoning_nano or 0)
    # Two nano-units cover the rounding of what splits into kinds.
    bound = token_cost_nano(prompt_upper_bound, dearest_input) + token_cost_nano(max_tokens_total, dearest_output) + 2
    return max(bound, price.minimum_nano)

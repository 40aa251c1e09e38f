"""What tokens cost: pure, and the only place where a count meets a price."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from billing.money import token_cost_nano


class Rates(Protocol):
    """Nano-units per million tokens. An unset cached rate means that cached input costs what input costs."""

    @property
    def input_nano(self) -> int: ...
    @property
    def cached_input_nano(self) -> int | None: ...
    @property
    def output_nano(self) -> int: ...


class RatedCost(NamedTuple):
    input_nano: int
    cached_nano: int
    output_nano: int

    @property
    def total_nano(self) -> int:
        return self.input_nano + self.cached_nano + self.output_nano

    def __sub__(self, other: RatedCost) -> RatedCost:
        return RatedCost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


FREE = RatedCost(0, 0, 0)


def cached_rate_nano(price: Rates) -> int:
    return price.input_nano if price.cached_input_nano is None else price.cached_input_nano


def rate(price: Rates, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> RatedCost:
    """The cost by token kind. Prompt tokens include the cached ones, which are paid once, at the cached rate.

    Each kind is rounded to a nano-unit, half to even; reasoning tokens are part of the completion.
    """
    if not 0 <= cached_tokens <= prompt_tokens or completion_tokens < 0:
        raise ValueError(
            f"prompt {prompt_tokens}, cached {cached_tokens}, completion {completion_tokens}: "
            "cached must be within prompt, and none below zero."
        )
    return RatedCost(
        token_cost_nano(prompt_tokens - cached_tokens, price.input_nano),
        token_cost_nano(cached_tokens, cached_rate_nano(price)),
        token_cost_nano(completion_tokens, price.output_nano),
    )


def hold_nano(price: Rates, prompt_upper_bound: int, max_tokens_total: int) -> int:
    """An upper bound on the cost of a call: its whole prompt at the dearer input rate, and all it may produce."""
    dearest_input = max(price.input_nano, cached_rate_nano(price))
    # One nano-unit a kind covers the rounding of a prompt that splits into cached and uncached.
    return token_cost_nano(prompt_upper_bound, dearest_input) + token_cost_nano(max_tokens_total, price.output_nano) + 1

"""What a GPU yields and what a token costs, from a measured throughput. Pure arithmetic on decimals; GPUs are rented by
the hour whether they work or not, so the cost of a token rises as the load falls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import ceil

SECONDS_PER_HOUR = 3600
MONTH_DAYS = 30
SECONDS_PER_MONTH = MONTH_DAYS * 24 * SECONDS_PER_HOUR
MILLION = 1_000_000
NANO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Assumptions:
    """`tokens_per_s` is the output of a whole deployment at full load; `gpus` is what that deployment runs on."""

    tokens_per_s: Decimal
    gpus: int
    gpu_hour_nano: int
    # Of the time that the GPUs are paid for: 0 < load <= 1.
    load: Decimal

    def __post_init__(self) -> None:
        if self.tokens_per_s <= 0 or self.gpus < 1 or self.gpu_hour_nano < 0 or not 0 < self.load <= 1:
            raise ValueError(
                f"tokens_per_s {self.tokens_per_s} and gpus {self.gpus} must be above zero, the price of an hour"
                f" {self.gpu_hour_nano} not below it, and load {self.load} above 0 and at most 1."
            )


@dataclass(frozen=True, slots=True)
class Yield:
    """Money in nano-units per million output tokens, to the nearest."""

    gpu_hours_per_million: Decimal
    tokens_per_gpu_month: int
    cost_per_million_nano: int


def compute(given: Assumptions) -> Yield:
    gpu_hours = Decimal(MILLION) * given.gpus / given.tokens_per_s / SECONDS_PER_HOUR
    return Yield(
        gpu_hours_per_million=gpu_hours,
        tokens_per_gpu_month=round(given.tokens_per_s / given.gpus * given.load * SECONDS_PER_MONTH),
        cost_per_million_nano=round(gpu_hours * given.gpu_hour_nano / given.load),
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What was sold of a model in a period."""

    days: Decimal
    output_tokens: int
    revenue_nano: int
    # Of the output, what that revenue was paid for; less than all of it where some is paid in another currency.
    paid_tokens: int

    @property
    def revenue_per_million_nano(self) -> int | None:
        """Everything that callers paid, input included, per million output tokens; None when nothing was sold."""
        return round(Decimal(self.revenue_nano) * MILLION / self.paid_tokens) if self.paid_tokens else None

    def gpus_needed(self, made: Yield) -> int:
        """For the demand at this pace."""
        per_month = Decimal(self.output_tokens) / self.days * MONTH_DAYS
        return ceil(per_month / made.tokens_per_gpu_month)


def margin(revenue_nano: int, cost_nano: int) -> Decimal | None:
    """The part of the revenue that is left; None without revenue."""
    return Decimal(revenue_nano - cost_nano) / revenue_nano if revenue_nano else None

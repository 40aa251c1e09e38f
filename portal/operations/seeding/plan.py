"""What is to be made, and what was made first, to which the rest refers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from billing.pricing.selectors import PriceInfo

MODELS = {"seed-27b": (20.0, 9.0), "seed-9b": (9.0, 4.0), "seed-mini": (4.0, 1.6)}  # milliseconds to start, and a token
DEPLOYMENTS_PER_MODEL = 2
GRANT_NANO = 10**15
RECORDS_PER_COPY = 50_000
# Depth of the daily rise and fall of traffic.
DAILY_SWING = 0.6

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Size:
    organizations: int
    keys: int
    records: int
    days: int
    end: datetime


@dataclass(frozen=True, slots=True)
class Made:
    """Ids of what was seeded first: the records refer to it."""

    organization_ids: Sequence[int]
    project_ids: Sequence[int]
    first_key_id: int
    key_offsets: Sequence[int]  # of each organization's first key, and one more
    prices: Sequence[PriceInfo]
    deployment_ids: Sequence[Sequence[int]]
    credit_account_ids: Sequence[int]
    revenue_account_id: int
    grant_ids: Sequence[int]


def slug_of(number: int) -> str:
    return f"seed-{number + 1:05d}"

"""What is to be made, and what was made first, to which the rest refers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from billing.pricing.selectors import PriceInfo

MODELS = {"seed-27b": (20.0, 9.0), "seed-9b": (9.0, 4.0), "seed-mini": (4.0, 1.6)}  # milliseconds to start, and a token
DEPLOYMENTS_PER_MODEL = 2
GRANT_NANO = 10**15
# Of one chunk: a few seconds' work, and told when done.
RECORDS_PER_CHUNK = 250_000
# Depth of the daily rise and fall of traffic.
DAILY_SWING = 0.6
# An organization has a member and a project, and one more for so many keys.
KEYS_PER_MEMBER, KEYS_PER_PROJECT = 80, 800

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Size:
    organizations: int
    keys: int
    records: int
    days: int
    end: datetime

    @property
    def start(self) -> datetime:
        return self.end - timedelta(days=self.days)

    def months(self) -> list[tuple[datetime, datetime]]:
        """The UTC months that the records lie in, as [start, end)."""
        first, last = (moment.year * 12 + moment.month - 1 for moment in (self.start, self.end))
        starts = [datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC) for number in range(first, last + 2)]
        return list(pairwise(starts))


@dataclass(frozen=True, slots=True)
class Made:
    """Ids of what was seeded first: the records refer to it. One of each for an organization, by rank."""

    organization_ids: range
    owner_ids: range
    key_offsets: Sequence[int]  # of each organization's first key, and one more
    first_key_id: int
    project_offsets: Sequence[int]
    first_project_id: int
    credit_account_ids: range
    revenue_account_id: int
    grant_ids: range
    prices: Sequence[PriceInfo]
    deployment_ids: Sequence[range]


def slug_of(number: int) -> str:
    return f"seed-{number + 1:05d}"

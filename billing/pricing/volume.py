"""Volume prices: who used much in a month pays less per token in the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import connection

from billing.ledger.reasons import Reason
from billing.pricing.selectors import Tier, volume_tiers
from billing.pricing.services import give_discount

# How the keys of discounts begin that the tiers gave.
VOLUME_KEY = "volume:"
_VOLUMES = """
SELECT organization_id, SUM(prompt_tokens + completion_tokens)::bigint AS tokens FROM billing_usage_rollup
 WHERE grain_s = 86400 AND start >= %s AND start < %s AND status IN ('completed', 'cancelled')
 GROUP BY organization_id HAVING SUM(prompt_tokens + completion_tokens) >= %s ORDER BY organization_id
"""


def next_month(moment: datetime) -> datetime:
    return datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)


def month_before(start: datetime) -> datetime:
    return datetime(start.year - (start.month == 1), (start.month - 2) % 12 + 1, 1, tzinfo=UTC)


def volumes(start: datetime, end: datetime, *, at_least: int) -> list[tuple[int, int]]:
    """Organizations and their billed tokens of [start, end), whole UTC days, where these are so many at least."""
    with connection.cursor() as cursor:
        cursor.execute(_VOLUMES, [start, end, at_least])
        found: list[tuple[int, int]] = cursor.fetchall()
        return found


def reached(tiers: Sequence[Tier], tokens: int) -> Tier:
    """The highest tier that so many tokens reach; there must be one."""
    return max((tier for tier in tiers if tier.from_tokens <= tokens), key=lambda tier: tier.from_tokens)


def apply_volume_tiers(*, now: datetime) -> int:
    """Give each organization the discount of the tier that it reached last month (UTC), until this month ends.

    Once per organization and month, however often it runs; returns how many discounts are new. A call before the
    discount was made keeps the price it was opened at.
    """
    tiers = volume_tiers()
    if not tiers:
        return 0
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    given = 0
    for organization_id, tokens in volumes(month_before(start), start, at_least=tiers[0].from_tokens):
        tier = reached(tiers, tokens)
        discount = give_discount(
            key=f"{VOLUME_KEY}{organization_id}:{start:%Y-%m}",
            organization_id=organization_id,
            basis_points=tier.basis_points,
            effective_from=now,
            effective_until=next_month(start),
            reason=Reason.VOLUME.about(tokens),
        )
        given += discount.effective_from == now
    return given

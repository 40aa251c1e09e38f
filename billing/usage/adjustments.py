"""Corrections of finished records: new rows and a ledger transaction, the record stays as it was written."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db import transaction

from billing.ledger.models import GrantKind, TransactionKind
from billing.ledger.posting import Posting, post
from billing.ledger.services import grant_credit
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.pricing.rating import FREE, RatedCost
from billing.usage.models import UsageAdjustment, UsageRecord
from billing.usage.services import COST_COLUMNS, cost_of


class Counts(NamedTuple):
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int = 0

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


NO_TOKENS = Counts(0, 0, 0, 0)


def effective(record: UsageRecord) -> tuple[Counts, RatedCost]:
    """The record's counts and cost with every correction so far."""
    rows: list[UsageRecord | UsageAdjustment] = [record, *record.adjustments.all()]
    counts = Counts(*(sum(getattr(row, name) for row in rows) for name in Counts._fields))
    return counts, RatedCost(*(sum(getattr(row, name) for row in rows) for name in COST_COLUMNS))


@transaction.atomic
def adjust_record(
    *, record: UsageRecord, status: str, counts: Counts, key: str, reason: str, now: datetime
) -> UsageAdjustment | None:
    """Correct the record to `counts`, billed as `status` at its pinned price.

    None when it is right already; a repeat under the same key returns the first correction. Too little charged is
    charged now; too much comes back as credit.
    """
    # The record's row is the lock: two corrections of one record follow each other.
    UsageRecord.objects.select_for_update(no_key=True).get(request_id=record.request_id)
    repeated = UsageAdjustment.objects.filter(key=key).first()
    if repeated is not None:
        return repeated
    old_counts, old_cost = effective(record)
    new_cost = FREE if record.price is None else cost_of(status, record.price, counts)
    tokens, cost = counts - old_counts, new_cost - old_cost
    if tokens == NO_TOKENS and cost == FREE:
        return None
    adjustment = UsageAdjustment.objects.create(
        key=key,
        record=record,
        organization_id=record.organization_id,
        reason=reason,
        **tokens._asdict(),
        **dict(zip(COST_COLUMNS, cost, strict=True)),
        created_at=now,
    )
    _settle(adjustment, cost.total_nano, record)
    return adjustment


def _settle(adjustment: UsageAdjustment, cost_nano: int, record: UsageRecord) -> None:
    if cost_nano > 0:
        wallet = lock_wallet(record.organization_id)
        entries = wallet.charge(cost_nano, at=record.started_at)
        post([Posting(TransactionKind.ADJUSTMENT, f"adjustment:{adjustment.key}", entries, adjustment.reason)])
        announce(record.organization_id, -cost_nano)
    elif cost_nano < 0:
        grant_credit(
            organization_id=record.organization_id,
            amount_nano=-cost_nano,
            reason=adjustment.reason,
            key=f"adjustment:{adjustment.key}",
            kind=GrantKind.CORRECTION,
        )

"""Corrections of finished records: new rows and a ledger transaction, the record stays as it was written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from billing.ledger.models import GrantKind, TransactionKind
from billing.ledger.posting import Posting, post
from billing.ledger.services import grant_credit
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.pricing.rating import FREE, RatedCost
from billing.usage.models import UsageAdjustment, UsageRecord
from billing.usage.services import cost_of


@dataclass(frozen=True, slots=True)
class Counts:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.prompt_tokens - other.prompt_tokens,
            self.cached_tokens - other.cached_tokens,
            self.completion_tokens - other.completion_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
        )


NO_TOKENS = Counts(0, 0, 0, 0)


def effective(record: UsageRecord) -> tuple[Counts, RatedCost]:
    """The record's counts and cost with every correction so far."""
    rows: list[UsageRecord | UsageAdjustment] = [record, *record.adjustments.all()]
    counts = Counts(
        sum(row.prompt_tokens for row in rows),
        sum(row.cached_tokens for row in rows),
        sum(row.completion_tokens for row in rows),
        sum(row.reasoning_tokens for row in rows),
    )
    cost = RatedCost(
        sum(row.input_cost_nano for row in rows),
        sum(row.cached_cost_nano for row in rows),
        sum(row.output_cost_nano for row in rows),
    )
    return counts, cost


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
        prompt_tokens=tokens.prompt_tokens,
        cached_tokens=tokens.cached_tokens,
        completion_tokens=tokens.completion_tokens,
        reasoning_tokens=tokens.reasoning_tokens,
        input_cost_nano=cost.input_nano,
        cached_cost_nano=cost.cached_nano,
        output_cost_nano=cost.output_nano,
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

"""Both accounts of single calls side by side: our record, the engine's receipt, and what was done about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from billing.accounts.models import BillingAccount
from billing.pricing.rating import FREE
from billing.reconciliation.models import MatchClass, Receipt
from billing.reconciliation.repair import LOST, UNRECORDED
from billing.usage.adjustments import Counts, effective
from billing.usage.models import RecordStatus, UsageAdjustment, UsageRecord
from billing.usage.services import cost_of


class Repair(StrEnum):
    """What was done so that the books say what the engine did."""

    # Nothing had to be.
    NONE = ""
    # An entry of its own corrects the record.
    ADJUSTED = "adjusted"
    # The gateway never finished the record: the receipt did.
    FINISHED = "finished"
    # There was no record: one that costs nothing was made.
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class Account:
    """What one side says of a call. `cost_nano` of a receipt is what its counts cost at the record's price; None where
    no price is known."""

    status: str
    error_code: str
    counts: Counts
    cost_nano: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`record` is as it was written, `corrected` with its adjustments; None where that side has no account."""

    request_id: UUID
    organization_id: int | None
    model: str
    currency: str
    started_at: datetime
    match_class: str
    is_settled: bool
    record: Account | None
    corrected: Account | None
    receipt: Account | None
    # Source and sequence of the receipt, and what was noted about it.
    receipt_name: str
    note: str
    adjustments: list[UsageAdjustment]
    repair: Repair

    @property
    def difference(self) -> Counts | None:
        """The engine's counts less ours as written; None with one account alone."""
        if self.record is None or self.receipt is None:
            return None
        return self.receipt.counts - self.record.counts

    @property
    def difference_nano(self) -> int | None:
        """The same in money."""
        if self.record is None or self.receipt is None:
            return None
        if self.record.cost_nano is None or self.receipt.cost_nano is None:
            return None
        return self.receipt.cost_nano - self.record.cost_nano


def compare(request_ids: Collection[UUID]) -> dict[UUID, Comparison]:
    """Of these calls, those that have a record or a receipt. Four queries."""
    found = UsageRecord.objects.filter(request_id__in=request_ids).select_related("price")
    records = {record.request_id: record for record in found.prefetch_related("adjustments")}
    receipts: dict[UUID, Receipt] = {}
    # Of several the one that was served tells, as everywhere in reconciliation.
    for receipt in Receipt.objects.filter(request_id__in=request_ids).order_by("-id"):
        kept = receipts.get(receipt.request_id)
        if kept is None or receipt.status != RecordStatus.FAILED or kept.status == RecordStatus.FAILED:
            receipts[receipt.request_id] = receipt
    organizations = {record.organization_id for record in records.values()}
    currencies = dict(
        BillingAccount.objects.filter(organization_id__in=organizations).values_list("organization_id", "currency")
    )
    return {
        request_id: _compared(request_id, records.get(request_id), receipts.get(request_id), currencies)
        for request_id in request_ids
        if request_id in records or request_id in receipts
    }


def _compared(
    request_id: UUID, record: UsageRecord | None, receipt: Receipt | None, currencies: dict[int, str]
) -> Comparison:
    told = record or receipt
    assert told is not None
    repair = _repair(record, receipt)
    # What reconciliation wrote from the receipt is no account of ours.
    is_ours = record is not None and repair not in (Repair.FINISHED, Repair.RECORDED)
    return Comparison(
        request_id=request_id,
        organization_id=told.organization_id,
        model=told.model,
        currency=currencies.get(told.organization_id or 0, "USD"),
        started_at=told.started_at,
        match_class=receipt.match_class if receipt else "gateway_only",
        is_settled=receipt is not None and receipt.is_settled,
        record=_written(record) if record and is_ours else None,
        corrected=_corrected(record) if record else None,
        receipt=_told(receipt, record),
        receipt_name=str(receipt or ""),
        note=receipt.note if receipt else "",
        adjustments=sorted(record.adjustments.all(), key=lambda row: row.id) if record else [],
        repair=repair,
    )


def _written(record: UsageRecord) -> Account:
    counts = Counts(*(getattr(record, name) for name in Counts._fields))
    return Account(record.status, record.error_code, counts, record.cost_nano)


def _corrected(record: UsageRecord) -> Account:
    counts, cost = effective(record)
    return Account(record.status, record.error_code, counts, cost.total_nano)


def _told(receipt: Receipt | None, record: UsageRecord | None) -> Account | None:
    if receipt is None:
        return None
    written = record.cache_write_tokens if record else 0
    counts = Counts(
        receipt.prompt_tokens,
        receipt.cached_tokens,
        receipt.completion_tokens,
        receipt.reasoning_tokens,
        # Receipts do not know it; the gateway's count stands, as far as it fits.
        min(written, receipt.prompt_tokens - receipt.cached_tokens),
    )
    cost_nano = None
    if record is not None and record.error_code != UNRECORDED:
        cost = FREE if record.price is None else cost_of(receipt.status, record.price, counts)
        cost_nano = cost.total_nano
    return Account(receipt.status, receipt.error_code, counts, cost_nano)


def _repair(record: UsageRecord | None, receipt: Receipt | None) -> Repair:
    if record is None:
        return Repair.NONE
    if record.error_code == UNRECORDED:
        return Repair.RECORDED
    if record.adjustments.all():
        return Repair.ADJUSTED
    is_finished = receipt is not None and receipt.match_class == MatchClass.UNFINISHED and receipt.is_settled
    # One side ended in the middle and said so itself: the other's account stands.
    is_lost = receipt is not None and LOST in (record.error_code, receipt.error_code)
    return Repair.FINISHED if is_finished and not is_lost else Repair.NONE

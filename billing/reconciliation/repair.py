"""How a stored receipt is judged and what follows. Class and repair are one transaction, so a crash leaves neither."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Exists, OuterRef

from billing.accounts.models import BillingAccount
from billing.ledger.reasons import Reason
from billing.ledger.signals import announce
from billing.reconciliation.models import MatchClass, Receipt
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.models import RecordStatus, UsageRecord
from billing.usage.services import FinishedRecord, finish_records

LOST = "lost"
UNRECORDED = "unrecorded"
_BATCH = 500

# A failed receipt bills nothing, so it never corrects a final record: it may be the first attempt of a call that
# another engine served, and what was sent before an engine died the gateway knows better. It agrees with a record that
# bills nothing either; beside one that does, it is lost, as the engine says itself, or it differs.
_SETTLE = """
UPDATE billing_receipt receipt SET is_settled = true, organization_id = record.organization_id,
       match_class = CASE WHEN record.error_code = 'lost' THEN 'unfinished'
                          WHEN receipt.status <> 'failed' OR record.status = 'failed' THEN 'equal'
                          WHEN receipt.error_code = 'lost' THEN 'unfinished' ELSE 'differ' END
  FROM billing_usage_record record
 WHERE receipt.source = %s AND receipt.match_class = 'pending' AND record.request_id = receipt.request_id
   AND record.status <> 'started'
   AND (receipt.status = 'failed' OR (record.error_code <> 'lost' AND
        (record.prompt_tokens, record.cached_tokens, record.completion_tokens, record.reasoning_tokens)
        = (receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens, receipt.reasoning_tokens)))
RETURNING receipt.match_class
"""
# Of two receipts for one request the one that was served comes first. A row that another transaction holds is left
# for the next run: its gateway is finishing it just now. A gateway that has ended is not waited for.
_LOCK_UNFINISHED = """
SELECT receipt.id FROM billing_receipt receipt JOIN billing_usage_record record USING (request_id)
 WHERE receipt.source = %s AND receipt.match_class = 'pending' AND record.status = 'started'
   AND (receipt.received_at <= %s
        OR EXISTS (SELECT 1 FROM billing_gateway_end gone WHERE gone.gateway_id = record.gateway_id))
 ORDER BY record.request_id, receipt.status = 'failed', receipt.sequence LIMIT %s
   FOR NO KEY UPDATE OF record, receipt SKIP LOCKED
"""


def settle(source: str) -> Counter[str]:
    """Receipts that ask for no correction, all in one statement; how many became which class."""
    with connection.cursor() as cursor:
        cursor.execute(_SETTLE, [source])
        return Counter(row[0] for row in cursor.fetchall())


def finish_unfinished(source: str, *, due_before: datetime) -> int:
    """Finish the records that their gateway never finished, as their receipts say."""
    done = 0
    while batch := _finish_batch(source, due_before):
        done += batch
    return done


@transaction.atomic
def _finish_batch(source: str, due_before: datetime) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_UNFINISHED, [source, due_before, _BATCH])
        ids = [row[0] for row in cursor.fetchall()]
    receipts = sorted(Receipt.objects.filter(id__in=ids), key=lambda receipt: ids.index(receipt.id))
    costs = finish_records([_as_finished(receipt) for receipt in receipts])
    organizations = dict(UsageRecord.objects.filter(request_id__in=costs).values_list("request_id", "organization_id"))
    for receipt in receipts:
        receipt.match_class, receipt.is_settled = MatchClass.UNFINISHED, True
        receipt.organization_id = organizations[receipt.request_id]
    Receipt.objects.bulk_update(receipts, ["match_class", "is_settled", "organization_id"])
    for request_id, cost_nano in costs.items():
        announce(organizations[request_id], -cost_nano)
    return len(receipts)


def _as_finished(receipt: Receipt) -> FinishedRecord:
    return FinishedRecord(
        request_id=receipt.request_id,
        status=receipt.status,
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        completion_tokens=receipt.completion_tokens,
        reasoning_tokens=receipt.reasoning_tokens,
        finish_reason="",
        error_code=receipt.error_code,
        ttft_ms=receipt.ttft_ms,
        duration_ms=(receipt.finished_at - receipt.started_at).total_seconds() * 1000,
        finished_at=receipt.finished_at,
    )


def adjust_differing(source: str, *, now: datetime) -> Counter[str]:
    """Correct the final records that differ from their receipt, one transaction each; how many became which class."""
    final = UsageRecord.objects.filter(request_id=OuterRef("request_id")).exclude(status=RecordStatus.STARTED)
    due = Receipt.objects.filter(Exists(final), source=source, match_class=MatchClass.PENDING)
    ids = due.order_by("sequence").values_list("id", flat=True)
    return Counter(match_class for receipt_id in ids if (match_class := _adjust(receipt_id, now)) is not None)


@transaction.atomic
def _adjust(receipt_id: int, now: datetime) -> MatchClass | None:
    receipt = Receipt.objects.select_for_update(no_key=True).get(id=receipt_id)
    if receipt.match_class != MatchClass.PENDING:
        return None
    record = UsageRecord.objects.select_related("price").get(request_id=receipt.request_id)
    # A lost record says nothing about how the call ended; any other keeps its own ending and corrects its counts.
    status = receipt.status if record.error_code == LOST else record.status
    adjustment = adjust_record(
        record=record,
        status=status,
        counts=Counts(
            receipt.prompt_tokens,
            receipt.cached_tokens,
            receipt.completion_tokens,
            receipt.reasoning_tokens,
            # Receipts do not know what was written to a cache: the gateway's count stands, as far as it fits.
            min(record.cache_write_tokens, receipt.prompt_tokens - receipt.cached_tokens),
        ),
        key=f"receipt:{receipt.source}:{receipt.request_id if receipt.sequence is None else receipt.sequence}",
        reason=Reason.RECEIPT.about(receipt, length=200),
        now=now,
    )
    match_class = receipt.match_class = _class_of(record, differs=adjustment is not None)
    receipt.is_settled, receipt.organization_id = True, record.organization_id
    receipt.save(update_fields=["match_class", "is_settled", "organization_id"])
    return match_class


def _class_of(record: UsageRecord, *, differs: bool) -> MatchClass:
    # Neither a lost record nor an estimate that was wrong is an account of its own.
    if record.error_code == LOST or (differs and record.is_estimated):
        return MatchClass.UNFINISHED
    return MatchClass.DIFFER if differs else MatchClass.EQUAL


def keep_engine_only(source: str, *, due_before: datetime) -> int:
    """Receipts without a record: the opening row never committed, so no byte left and nothing is owed.

    The work gets a record of its own that costs nothing, if its tenant is one of ours; else it stays unsettled.
    """
    record = UsageRecord.objects.filter(request_id=OuterRef("request_id"))
    due = Receipt.objects.filter(
        ~Exists(record), source=source, match_class=MatchClass.PENDING, received_at__lte=due_before
    ).order_by("sequence")
    done = 0
    while batch := _keep_batch(list(due[:_BATCH])):
        done += batch
    return done


@transaction.atomic
def _keep_batch(receipts: list[Receipt]) -> int:
    tenants = {int(receipt.tenant) for receipt in receipts if receipt.tenant.isascii() and receipt.tenant.isdigit()}
    known = set(BillingAccount.objects.filter(organization_id__in=tenants).values_list("organization_id", flat=True))
    for receipt in receipts:
        receipt.match_class = MatchClass.ENGINE_ONLY
        if receipt.tenant.isdigit() and int(receipt.tenant) in known:
            receipt.organization_id, receipt.is_settled = int(receipt.tenant), True
        else:
            receipt.note = f"tenant {receipt.tenant!r} is no organization of ours"
    UsageRecord.objects.bulk_create(
        [_unrecorded(receipt, int(receipt.tenant)) for receipt in receipts if receipt.is_settled], ignore_conflicts=True
    )
    Receipt.objects.bulk_update(receipts, ["match_class", "is_settled", "organization_id", "note"])
    return len(receipts)


def _unrecorded(receipt: Receipt, organization_id: int) -> UsageRecord:
    return UsageRecord(
        request_id=receipt.request_id,
        organization_id=organization_id,
        model=receipt.model,
        protocol="",
        is_stream=False,
        gateway_id="",
        status=RecordStatus.FAILED,
        hold_nano=0,
        started_at=receipt.started_at,
        finished_at=receipt.finished_at,
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        completion_tokens=receipt.completion_tokens,
        reasoning_tokens=receipt.reasoning_tokens,
        error_code=UNRECORDED,
        ttft_ms=receipt.ttft_ms,
    )

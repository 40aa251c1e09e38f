"""Compares the engines' receipts with our records and repairs what differs, never by editing.

A receipt is stored first and judged after: at once when its record is final, else when the gateway has had
RECEIPT_GRACE_S to finish it. So a receipt that overtakes the gateway's group commit is no mismatch, and one that came
is never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, Max, OuterRef, Q
from django.utils import timezone

from billing.errors import JournalRestarted
from billing.ledger.signals import announce
from billing.reconciliation.models import GatewayEnd, MatchClass, Receipt
from billing.reconciliation.repair import LOST, adjust_differing, finish_unfinished, keep_engine_only, settle
from billing.usage.models import RecordStatus, UsageRecord
from billing.usage.services import FinishedRecord, finish_records

logger = logging.getLogger(__name__)

_CLOSE_BATCH = 500


@dataclass(frozen=True, slots=True)
class EngineReceipt:
    """One line of an engine's journal. `tenant` is the organization id that the gateway gave to the engine."""

    sequence: int
    request_id: UUID
    model: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    error_code: str
    started_at: datetime
    finished_at: datetime
    ttft_ms: float | None
    tenant: str

    def __post_init__(self) -> None:
        if self.status not in RecordStatus.values or self.status == RecordStatus.STARTED:
            raise ValueError(f"receipt {self.sequence}: status {self.status!r} is not completed, cancelled or failed.")
        if not (0 <= self.cached_tokens <= self.prompt_tokens and 0 <= self.reasoning_tokens <= self.completion_tokens):
            raise ValueError(f"receipt {self.sequence}: a part of its token counts is larger than its whole.")


@dataclass(frozen=True)
class ReceiptSummary:
    """What one call did: receipts that were new, how many got which class, and how many still wait."""

    stored: int
    equal: int
    differ: int
    unfinished: int
    engine_only: int
    pending: int


def apply_receipts(
    *, source: str, receipts: Sequence[EngineReceipt], now: datetime | None = None, grace: timedelta | None = None
) -> ReceiptSummary:
    """Store new receipts of `source`, then judge and repair all of it that is due.

    Acknowledge the receipts to the engine only after this returns. A repeat stores and repairs nothing; a call without
    receipts judges those that had to wait. `source` names a journal, not an address: sequences must never start again
    under the same name, and JournalRestarted is raised if they do.
    """
    now = now or timezone.now()
    # How long a gateway may take to finish a record whose receipt is here already.
    due_before = now - (timedelta(seconds=settings.RECEIPT_GRACE_S) if grace is None else grace)
    stored = _store(source, receipts, now)
    settled = settle(source)
    adjusted = adjust_differing(source, now=now)
    finished = finish_unfinished(source, due_before=due_before)
    engine_only = keep_engine_only(source, due_before=due_before)
    pending = Receipt.objects.filter(source=source, match_class=MatchClass.PENDING).count()
    return ReceiptSummary(
        stored,
        settled[MatchClass.EQUAL],
        settled[MatchClass.DIFFER] + adjusted[MatchClass.DIFFER],
        settled[MatchClass.UNFINISHED] + adjusted[MatchClass.UNFINISHED] + finished,
        engine_only,
        pending,
    )


_STORE = """
INSERT INTO billing_receipt (source, sequence, request_id, model, status, prompt_tokens, cached_tokens,
    completion_tokens, reasoning_tokens, error_code, started_at, finished_at, ttft_ms, tenant, received_at,
    match_class, is_settled, note)
SELECT %s, v.*, %s, 'pending', false, ''
  FROM unnest(%s::bigint[], %s::uuid[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
              %s::text[], %s::timestamptz[], %s::timestamptz[], %s::float8[], %s::text[]) AS v
ON CONFLICT (source, sequence) DO NOTHING
"""
_FIELDS = (
    "sequence",
    "request_id",
    "model",
    "status",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "error_code",
    "started_at",
    "finished_at",
    "ttft_ms",
    "tenant",
)


@transaction.atomic
def _store(source: str, receipts: Sequence[EngineReceipt], now: datetime) -> int:
    if not receipts:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(_STORE, [source, now, *([getattr(row, name) for row in receipts] for name in _FIELDS)])
        stored: int = cursor.rowcount
    if stored < len(receipts):
        sequences = [row.sequence for row in receipts]
        kept = dict(Receipt.objects.filter(source=source, sequence__in=sequences).values_list("sequence", "request_id"))
        for row in receipts:
            if kept[row.sequence] != row.request_id:
                raise JournalRestarted(source, row.sequence)
    return stored


def cursor(source: str) -> int:
    """The last sequence stored of `source`; 0 before the first. Ask the engine for what comes after."""
    return Receipt.objects.filter(source=source).aggregate(last=Max("sequence"))["last"] or 0


def note_gateway_end(gateway_id: str, *, now: datetime | None = None) -> None:
    """That gateway finishes no more calls: what its records lack is taken from the receipts at once. A repeat keeps
    the first moment."""
    GatewayEnd.objects.get_or_create(gateway_id=gateway_id, defaults={"ended_at": now or timezone.now()})
    logger.warning("gateway_ended gateway_id=%s", gateway_id)


def close_stale(*, older_than: timedelta, now: datetime) -> int:
    """Close records without a receipt that nobody finishes any more: failed, `lost`, free, hold released.

    That is, what started more than `older_than` ago, and what a gateway left that ended RECEIPT_GRACE_S ago: the
    receipts would be here by then. Returns how many. A later receipt still corrects such a record. A repeat finds
    none. Receipts that still wait are judged first, so that those of an engine which is gone finish their records too.
    """
    waiting = Receipt.objects.filter(match_class=MatchClass.PENDING).values_list("source", flat=True)
    for source in waiting.order_by("source").distinct():
        apply_receipts(source=source, receipts=[], now=now)
    receipt = Receipt.objects.filter(request_id=OuterRef("request_id"))
    ended = GatewayEnd.objects.filter(ended_at__lt=now - timedelta(seconds=settings.RECEIPT_GRACE_S))
    stale = UsageRecord.objects.filter(
        ~Exists(receipt),
        Q(started_at__lt=now - older_than) | Q(gateway_id__in=ended.values("gateway_id")),
        status=RecordStatus.STARTED,
    ).order_by("request_id")
    closed = 0
    while rows := list(stale.values_list("request_id", "organization_id")[:_CLOSE_BATCH]):
        with transaction.atomic():
            finish_records([_lost(request_id, now) for request_id, _ in rows])
            for organization_id in {organization_id for _, organization_id in rows}:
                # The balance stays, what is available grows by the hold.
                announce(organization_id, 0)
        closed += len(rows)
    return closed


def _lost(request_id: UUID, now: datetime) -> FinishedRecord:
    return FinishedRecord(
        request_id=request_id,
        status=RecordStatus.FAILED,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        finish_reason="",
        error_code=LOST,
        ttft_ms=None,
        duration_ms=None,
        finished_at=now,
    )

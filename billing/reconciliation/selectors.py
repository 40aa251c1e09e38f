"""Match rates for the operator: per organization and UTC day, as found and after repair."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django.db import connection


@dataclass(frozen=True)
class MatchRate:
    """Calls that reached an engine, on one day. `organization_id` is None for receipts of nobody we know."""

    organization_id: int | None
    day: date
    total: int
    equal: int
    differ: int
    unfinished: int
    engine_only: int
    gateway_only: int
    pending: int
    # Of engine_only: the receipts whose tenant is unknown.
    unsettled: int

    @property
    def unmatched(self) -> int:
        """Neither equal nor repaired."""
        return self.gateway_only + self.pending + self.unsettled

    @property
    def raw_percent(self) -> Decimal:
        """Record and receipt said the same without help."""
        return _percent(self.equal, self.total)

    @property
    def repaired_percent(self) -> Decimal:
        """The same, after repairs."""
        return _percent(self.total - self.unmatched, self.total)


def _percent(part: int, whole: int) -> Decimal:
    return Decimal(100) if whole == 0 else Decimal(100 * part) / Decimal(whole)


# A record counts when it reached an engine: it has a receipt, or it was served and its engine keeps a journal. Of
# several receipts for one request, the one that was served tells the class.
_CALLS = """
calls AS (
    SELECT record.request_id, record.organization_id, record.started_at,
           COALESCE(receipt.match_class, 'gateway_only') AS match_class,
           COALESCE(receipt.is_settled, false) AS is_settled
      FROM billing_usage_record record
      LEFT JOIN LATERAL (
        SELECT match_class, is_settled FROM billing_receipt
         WHERE billing_receipt.request_id = record.request_id ORDER BY status = 'failed', id LIMIT 1
      ) receipt ON true
     WHERE record.started_at >= %(start)s AND record.started_at < %(end)s
       AND (receipt.match_class IS NOT NULL OR (record.expects_receipt AND record.status IN ('completed', 'cancelled')
            AND record.prompt_tokens + record.completion_tokens > 0))
    UNION ALL
    SELECT receipt.request_id, NULL, receipt.started_at, receipt.match_class, receipt.is_settled
      FROM billing_receipt receipt
     WHERE receipt.started_at >= %(start)s AND receipt.started_at < %(end)s
       AND NOT EXISTS (SELECT 1 FROM billing_usage_record WHERE request_id = receipt.request_id)
)
"""
_RATES = f"""
WITH {_CALLS}
SELECT organization_id, (started_at AT TIME ZONE 'UTC')::date AS day, COUNT(*),
       COUNT(*) FILTER (WHERE match_class = 'equal'), COUNT(*) FILTER (WHERE match_class = 'differ'),
       COUNT(*) FILTER (WHERE match_class = 'unfinished'), COUNT(*) FILTER (WHERE match_class = 'engine_only'),
       COUNT(*) FILTER (WHERE match_class = 'gateway_only'), COUNT(*) FILTER (WHERE match_class = 'pending'),
       COUNT(*) FILTER (WHERE match_class = 'engine_only' AND NOT is_settled)
  FROM calls GROUP BY organization_id, day ORDER BY day, organization_id NULLS LAST
"""  # noqa: S608 - constants only
_MISMATCHES = f"""
WITH {_CALLS}
SELECT request_id, organization_id, match_class, is_settled, started_at FROM calls
 WHERE match_class <> 'equal' ORDER BY is_settled, started_at DESC LIMIT %(limit)s
"""  # noqa: S608 - constants only


def match_rates(start: datetime, end: datetime) -> list[MatchRate]:
    """Rates of what started in [start, end), in one query."""
    with connection.cursor() as cursor:
        cursor.execute(_RATES, {"start": start, "end": end})
        return [MatchRate(*row) for row in cursor.fetchall()]


@dataclass(frozen=True)
class Mismatch:
    request_id: UUID
    organization_id: int | None
    match_class: str
    is_settled: bool
    age: timedelta


def mismatches(start: datetime, end: datetime, *, now: datetime, limit: int = 200) -> list[Mismatch]:
    """Calls whose record and receipt did not agree by themselves; open ones first, with their age."""
    with connection.cursor() as cursor:
        cursor.execute(_MISMATCHES, {"start": start, "end": end, "limit": limit})
        return [
            Mismatch(request_id, organization_id, match_class, is_settled, now - started_at)
            for request_id, organization_id, match_class, is_settled, started_at in cursor.fetchall()
        ]

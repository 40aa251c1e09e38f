"""The usage behind the files, from one place, so that every file of a month adds up to the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from billing.accounts.models import BillingAccount
from billing.exports.models import Export
from billing.invoices.models import Invoice, InvoiceStatus
from billing.invoices.periods import Period, month
from billing.pricing.rating import KINDS_SQL

_CHUNK = 2_000


@dataclass(frozen=True)
class Scope:
    """A month of an organization, and the invoice that was issued for it, if one was."""

    account: BillingAccount
    period: Period
    invoice: Invoice | None


def scope_of(export: Export) -> Scope:
    account = BillingAccount.objects.select_related("organization").get(organization_id=export.organization_id)
    issued = Invoice.objects.filter(organization_id=export.organization_id, period=export.period)
    issued = issued.exclude(status__in=[InvoiceStatus.DRAFT, InvoiceStatus.VOID])
    return Scope(account, month(export.period, account.time_zone), issued.first())


# A correction is a row of its own, of the request that it corrects.
_PARTS = """
    SELECT record.request_id, 'usage' AS kind, record.started_at, record.finished_at, record.project_id,
           record.api_key_id, record.model, record.price_id, record.end_user, record.protocol, record.is_stream,
           record.status, record.error_code, 1 AS requests, record.prompt_tokens, record.cached_tokens,
           record.completion_tokens, record.reasoning_tokens, record.input_cost_nano, record.cached_cost_nano,
           record.output_cost_nano, record.cost_nano, record.invoice_id, record.cache_write_tokens,
           record.cache_write_cost_nano, record.reasoning_cost_nano, record.minimum_cost_nano
      FROM billing_usage_record record
     WHERE record.organization_id = %(organization_id)s AND record.status <> 'started' AND {record_is_taken}
    UNION ALL
    SELECT record.request_id, 'adjustment', record.started_at, adjustment.created_at, record.project_id,
           record.api_key_id, record.model, record.price_id, record.end_user, record.protocol, record.is_stream,
           record.status, record.error_code, 0, adjustment.prompt_tokens, adjustment.cached_tokens,
           adjustment.completion_tokens, adjustment.reasoning_tokens, adjustment.input_cost_nano,
           adjustment.cached_cost_nano, adjustment.output_cost_nano, adjustment.cost_nano, adjustment.invoice_id,
           adjustment.cache_write_tokens, adjustment.cache_write_cost_nano, adjustment.reasoning_cost_nano,
           adjustment.minimum_cost_nano
      FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE adjustment.organization_id = %(organization_id)s AND {adjustment_is_taken}
"""
_STARTED = "record.started_at >= %(start)s AND record.started_at < %(end)s"
_FILTERS = """
 AND (%(project_id)s::bigint IS NULL OR record.project_id = %(project_id)s)
 AND (%(api_key_id)s::bigint IS NULL OR record.api_key_id = %(api_key_id)s)
 AND (%(model)s = '' OR record.model = %(model)s) AND (%(end_user)s = '' OR record.end_user = %(end_user)s)
"""


@dataclass(frozen=True)
class RequestRow:
    """One request or one correction, as it was written."""

    request_id: UUID
    kind: str
    started_at: datetime
    finished_at: datetime
    project_id: int | None
    api_key_id: int | None
    model: str
    price_id: int | None
    end_user: str
    protocol: str
    is_stream: bool
    status: str
    error_code: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    input_cost_nano: int
    cached_cost_nano: int
    output_cost_nano: int
    cost_nano: int
    invoice_id: int | None
    cache_write_tokens: int
    cache_write_cost_nano: int
    reasoning_cost_nano: int
    minimum_cost_nano: int


def _request_parameters(export: Export, scope: Scope) -> dict[str, Any]:
    return {
        "organization_id": export.organization_id,
        "start": scope.period.start,
        "end": scope.period.end,
        "project_id": export.project_id,
        "api_key_id": export.api_key_id,
        "model": export.model,
        "end_user": export.end_user,
    }


def _requests_sql() -> str:
    return _PARTS.format(record_is_taken=_STARTED + _FILTERS, adjustment_is_taken=_STARTED + _FILTERS)


def count_requests(export: Export, scope: Scope) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM ({_requests_sql()}) part", _request_parameters(export, scope))  # noqa: S608 fixed texts
        return int(cursor.fetchone()[0])


def requests(export: Export, scope: Scope) -> Iterator[RequestRow]:
    """What started in the month, oldest first, from a cursor of the server: call it inside a transaction."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(f"{_requests_sql()} ORDER BY 3, 1, 2", _request_parameters(export, scope))
        while batch := cursor.fetchmany(_CHUNK):
            yield from (RequestRow(*row) for row in batch)


@dataclass(frozen=True)
class UsageGroup:
    """Sums of one group of a month; `token_kind` has the tokens of that kind only. Those of failed requests cost
    nothing and are in no sum; the requests are."""

    day: str
    project_id: int | None
    api_key_id: int | None
    model: str
    price_id: int | None
    end_user: str
    kind: str
    token_kind: str
    requests: int
    tokens: int
    cost_nano: int


_GROUPS = """
WITH part AS ({parts})
SELECT {day}, {project_id}, {api_key_id}, {model}, {price_id}, {end_user}, {kind}, line.token_kind,
       SUM(part.requests)::bigint,
       COALESCE(SUM(line.tokens) FILTER (WHERE part.status <> 'failed' OR part.cost_nano <> 0), 0)::bigint,
       SUM(line.cost_nano)::bigint
  FROM part LEFT JOIN billing_price price ON price.id = part.price_id
  CROSS JOIN LATERAL {kinds} AS line (token_kind, tokens, cost_nano)
 WHERE line.token_kind IN ('input', 'cached_input', 'output') OR line.tokens <> 0 OR line.cost_nano <> 0
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
"""
_FIELDS = {
    "day": ("to_char(part.started_at AT TIME ZONE %(zone)s, 'YYYY-MM-DD')", "''"),
    "project_id": ("part.project_id", "NULL::bigint"),
    "api_key_id": ("part.api_key_id", "NULL::bigint"),
    "model": ("part.model", "''"),
    "price_id": ("part.price_id", "NULL::bigint"),
    "end_user": ("part.end_user", "''"),
    # Usage of an earlier month, which this invoice took with it, is a correction to a month that was billed.
    "kind": (
        "CASE WHEN part.kind = 'adjustment' THEN 'adjustment'"
        " WHEN part.started_at < %(start)s THEN 'late_usage' ELSE 'usage' END",
        "''",
    ),
}


def groups(scope: Scope, *by: str) -> list[UsageGroup]:
    """Sums by the named fields and the token kind: of what the month's invoice took, else of what started in it."""
    taken = _STARTED if scope.invoice is None else ""
    sql = _GROUPS.format(
        kinds=KINDS_SQL,
        parts=_PARTS.format(
            record_is_taken=taken or "record.invoice_id = %(invoice_id)s",
            adjustment_is_taken=taken or "adjustment.invoice_id = %(invoice_id)s",
        ),
        **{name: chosen if name in by else fallback for name, (chosen, fallback) in _FIELDS.items()},
    )
    parameters: dict[str, Any] = {
        "organization_id": scope.account.organization_id,
        "start": scope.period.start,
        "end": scope.period.end,
        "zone": scope.period.time_zone,
        "invoice_id": scope.invoice.id if scope.invoice else None,
    }
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [UsageGroup(*row) for row in cursor.fetchall()]

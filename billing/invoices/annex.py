"""The annex of an invoice: its usage by day, project, key and model as CSV, exact, with a last line that sums to it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from django.db import connection

from billing.errors import RecordsRetired
from billing.invoices.models import Invoice, InvoiceStatus
from billing.money import to_decimal
from billing.usage.partitions import retired_in

COLUMNS = (
    "day",
    "project_id",
    "api_key_id",
    "model",
    "kind",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "completion_tokens",
    "cost",
    "currency",
)

# `{taken}` is what the invoice is made of: its own records once it is issued, else what it would take.
_BOUND = "{row}.invoice_id = %(invoice_id)s"
_UNBOUND = (
    "{row}.invoice_id IS NULL AND record.status <> 'started'"
    " AND record.started_at < %(end)s AND (%(is_over)s OR record.started_at >= %(start)s)"
)
_ANNEX = """
SELECT to_char(record.started_at AT TIME ZONE %(zone)s, 'YYYY-MM-DD'), record.project_id, record.api_key_id,
       record.model, part.kind, SUM(part.requests)::bigint, SUM(part.prompt_tokens)::bigint,
       SUM(part.cached_tokens)::bigint, SUM(part.cache_write_tokens)::bigint,
       SUM(part.completion_tokens)::bigint, SUM(part.cost_nano)::bigint
  FROM (
    SELECT record.request_id, 'usage' AS kind, 1 AS requests, record.prompt_tokens, record.cached_tokens,
           record.cache_write_tokens, record.completion_tokens, record.cost_nano
      FROM billing_usage_record record
     WHERE record.organization_id = %(organization_id)s AND {record_taken}
    UNION ALL
    SELECT record.request_id, 'adjustment', 0, adjustment.prompt_tokens, adjustment.cached_tokens,
           adjustment.cache_write_tokens, adjustment.completion_tokens, adjustment.cost_nano
      FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE adjustment.organization_id = %(organization_id)s AND {adjustment_taken}
  ) part JOIN billing_usage_record record USING (request_id)
 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""


def require_records(invoice: Invoice) -> None:
    """Raises RecordsRetired where a part of what an issued invoice took is gone."""
    retired = retired_in(invoice.period_start, invoice.period_end)
    if retired and invoice.status != InvoiceStatus.DRAFT:
        raise RecordsRetired(retired.period, retired.retired_at)


def rows(invoice: Invoice) -> Iterator[tuple[str | int | None, ...]]:
    """Of an issued invoice what it took, of a draft what it would take now."""
    parameters: dict[str, Any] = {
        "zone": invoice.time_zone,
        "organization_id": invoice.organization_id,
        "invoice_id": invoice.id,
        "start": invoice.period_start,
        "end": invoice.period_end,
        # Drafted after its month, it takes late usage of earlier ones too.
        "is_over": invoice.drafted_at >= invoice.period_end,
    }
    taken = _UNBOUND if invoice.status == InvoiceStatus.DRAFT else _BOUND
    names = {"record_taken": taken.format(row="record"), "adjustment_taken": taken.format(row="adjustment")}
    with connection.cursor() as cursor:
        cursor.execute(_ANNEX.format(**names), parameters)
        while batch := cursor.fetchmany(1000):
            yield from batch


def render(invoice: Invoice) -> bytes:
    """CSV with a head; the last line is the total, which is the invoice's exact usage.

    Raises RecordsRetired once the records are gone.
    """
    require_records(invoice)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    total = 0
    for *keys, cost_nano in rows(invoice):
        total += int(cost_nano or 0)
        writer.writerow([*keys, f"{to_decimal(int(cost_nano or 0)):f}", invoice.currency])
    writer.writerow(["total", *[""] * (len(COLUMNS) - 3), f"{to_decimal(total):f}", invoice.currency])
    return out.getvalue().encode()

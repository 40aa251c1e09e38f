"""The annex of an invoice: its usage by day, project, key and model as CSV, exact, with a last line that sums to it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from django.db import connection

from billing.invoices.models import Invoice
from billing.money import to_decimal

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
_ANNEX = """
SELECT to_char(record.started_at AT TIME ZONE %(zone)s, 'YYYY-MM-DD'), record.project_id, record.api_key_id,
       record.model, part.kind, SUM(part.requests)::bigint, SUM(part.prompt_tokens)::bigint,
       SUM(part.cached_tokens)::bigint, SUM(part.cache_write_tokens)::bigint,
       SUM(part.completion_tokens)::bigint, SUM(part.cost_nano)::bigint
  FROM (
    SELECT request_id, 'usage' AS kind, 1 AS requests, prompt_tokens, cached_tokens, cache_write_tokens,
           completion_tokens, cost_nano
      FROM billing_usage_record
     WHERE organization_id = %(organization_id)s AND invoice_id = %(invoice_id)s
    UNION ALL
    SELECT record_id, 'adjustment', 0, prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, cost_nano
      FROM billing_usage_adjustment
     WHERE organization_id = %(organization_id)s AND invoice_id = %(invoice_id)s
  ) part JOIN billing_usage_record record USING (request_id)
 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""


def rows(invoice: Invoice) -> Iterator[tuple[str | int | None, ...]]:
    """Of an issued invoice; a draft has bound nothing, and its annex is empty."""
    parameters: dict[str, str | int] = {
        "zone": invoice.time_zone,
        "organization_id": invoice.organization_id,
        "invoice_id": invoice.id,
    }
    with connection.cursor() as cursor:
        cursor.execute(_ANNEX, parameters)
        while batch := cursor.fetchmany(1000):
            yield from batch


def render(invoice: Invoice) -> bytes:
    """CSV with a head; the last line is the total, which is the invoice's exact usage."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    total = 0
    for *keys, cost_nano in rows(invoice):
        total += int(cost_nano or 0)
        writer.writerow([*keys, f"{to_decimal(int(cost_nano or 0)):f}", invoice.currency])
    writer.writerow(["total", *[""] * (len(COLUMNS) - 3), f"{to_decimal(total):f}", invoice.currency])
    return out.getvalue().encode()

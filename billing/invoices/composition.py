"""What an invoice says: its lines and how they were paid, from the usage it takes. Exact in nano, then rounded once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.db import connection

from billing.errors import LedgerMismatch
from billing.fees.models import RecurringFee
from billing.fees.proration import Share, share_of
from billing.fees.selectors import fees_in
from billing.invoices.models import InvoiceLine, LineKind, TokenKind
from billing.invoices.periods import Period
from billing.money import from_minor, to_minor
from billing.pricing.models import Price
from billing.pricing.rating import KINDS_SQL, rates_by_kind

_KIND_ORDER = {kind.value: position for position, kind in enumerate(LineKind)}
_TOKEN_ORDER = {kind.value: position for position, kind in enumerate(TokenKind)}

# One statement is one snapshot: the lines and the ledger's sums are of the same records. Tokens of failed requests
# cost nothing and stand on no line.
_COMPOSE = """
WITH taken AS (
    SELECT * FROM billing_usage_record record
     WHERE record.organization_id = %(organization_id)s AND record.status <> 'started' AND {record_is_taken}
), corrected AS (
    SELECT adjustment.*, record.model, record.price_id,
           record.status IN ('completed', 'cancelled') OR adjustment.cost_nano <> 0 AS is_billed
      FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE adjustment.organization_id = %(organization_id)s AND {adjustment_is_taken}
), parts AS (
    SELECT CASE WHEN started_at >= %(start)s THEN 'usage' ELSE 'late_usage' END AS kind, model, price_id,
           {columns}
      FROM taken WHERE status IN ('completed', 'cancelled')
    UNION ALL
    SELECT 'adjustment', model, price_id, {columns}
      FROM corrected WHERE is_billed
), sums AS (
    SELECT part.kind, part.model, part.price_id, line.token_kind, SUM(line.tokens) AS tokens, SUM(line.amount) AS amount
      FROM parts part JOIN billing_price price ON price.id = part.price_id
     CROSS JOIN LATERAL {kinds} AS line (token_kind, tokens, amount)
     GROUP BY part.kind, part.model, part.price_id, line.token_kind
), keys AS (
    SELECT 'usage:' || request_id AS key FROM taken WHERE cost_nano <> 0
    UNION ALL SELECT 'adjustment:' || key FROM corrected WHERE cost_nano > 0
    UNION ALL SELECT 'grant:adjustment:' || key FROM corrected WHERE cost_nano < 0
), settled AS (
    SELECT account.kind, -SUM(entry.amount_nano) AS amount
      FROM keys JOIN billing_ledger_transaction posted USING (key)
      JOIN billing_ledger_entry entry ON entry.transaction_id = posted.id
      JOIN billing_ledger_account account ON account.id = entry.account_id
     WHERE account.kind IN ('credit', 'receivable', 'absorbed') GROUP BY account.kind
)
SELECT 'line', kind, model, price_id, token_kind, tokens::bigint, amount::bigint
  FROM sums WHERE tokens <> 0 OR amount <> 0
UNION ALL
SELECT 'settled', kind, '', NULL, '', 0, amount::bigint FROM settled
"""
_COLUMNS = (
    "prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, reasoning_tokens, input_cost_nano,"
    " cached_cost_nano, cache_write_cost_nano, output_cost_nano, reasoning_cost_nano, minimum_cost_nano"
)
_BOUND = {
    "record_is_taken": "record.invoice_id = %(invoice_id)s",
    "adjustment_is_taken": "adjustment.invoice_id = %(invoice_id)s",
}
_UNBOUND = {
    "record_is_taken": "record.invoice_id IS NULL AND record.started_at < %(end)s AND record.started_at >= %(since)s",
    "adjustment_is_taken": (
        "adjustment.invoice_id IS NULL AND record.started_at < %(end)s AND record.started_at >= %(since)s"
    ),
}


@dataclass(frozen=True)
class Composition:
    """The usage lines, unsaved, and their sums. The total is what is still owed of the usage, in whole cents."""

    lines: list[InvoiceLine]
    usage_nano: int
    credit_nano: int
    absorbed_nano: int
    owed_nano: int
    subtotal_minor: int
    credit_minor: int
    total_minor: int
    # What the ledger must still move so that the receivable is the total.
    rounding_nano: int


def fee_lines(organization_id: int, bounds: Period, currency: str) -> list[InvoiceLine]:
    """The month's share of each fee that runs in it."""
    zone = ZoneInfo(bounds.time_zone)
    first, after = bounds.start.astimezone(zone).date(), bounds.end.astimezone(zone).date()
    lines = []
    for fee in fees_in(organization_id, first, after):
        share = share_of(
            quantity=fee.quantity,
            unit_amount_minor=fee.unit_amount_minor,
            starts_on=fee.starts_on,
            ends_on=fee.ends_on,
            first=first,
            after=after,
        )
        if share is not None:
            lines.append(_fee_line(fee, share, currency))
    return lines


def _fee_line(fee: RecurringFee, share: Share, currency: str) -> InvoiceLine:
    return InvoiceLine(
        kind=LineKind.FEE,
        model=fee.name,
        fee=fee,
        quantity=fee.quantity,
        days=share.days,
        days_of_month=share.days_of_month,
        unit_price_nano=from_minor(fee.unit_amount_minor, currency),
        amount_nano=from_minor(share.amount_minor, currency),
        amount_minor=share.amount_minor,
    )


def compose_bound(*, organization_id: int, invoice_id: int, start: datetime, currency: str) -> Composition:
    """From the records that are bound to the invoice."""
    return _compose(_BOUND, currency, organization_id=organization_id, invoice_id=invoice_id, start=start)


def compose_unbound(
    *, organization_id: int, start: datetime, end: datetime, since: datetime, currency: str
) -> Composition:
    """From the records that no invoice has and that started in [since, end)."""
    return _compose(_UNBOUND, currency, organization_id=organization_id, start=start, end=end, since=since)


def _compose(conditions: dict[str, str], currency: str, **values: int | datetime) -> Composition:
    with connection.cursor() as cursor:
        cursor.execute(_COMPOSE.format(columns=_COLUMNS, kinds=KINDS_SQL, **conditions), values)
        rows = cursor.fetchall()
    prices = Price.objects.in_bulk([row[3] for row in rows if row[0] == "line"])
    lines = [_line(row[1:], prices[row[3]], currency) for row in rows if row[0] == "line"]
    lines.sort(key=lambda line: (_KIND_ORDER[line.kind], line.model, line.price_id or 0, _TOKEN_ORDER[line.token_kind]))
    paid = {row[1]: row[6] for row in rows if row[0] == "settled"}
    return _summed(lines, paid.get("credit", 0), paid.get("absorbed", 0), paid.get("receivable", 0), currency)


def _line(row: tuple[str, str, int, str, int, int], price: Price, currency: str) -> InvoiceLine:
    kind, model, price_id, token_kind, tokens, amount_nano = row
    return InvoiceLine(
        kind=kind,
        model=model,
        price_id=price_id,
        token_kind=token_kind,
        tokens=tokens,
        unit_price_nano=rates_by_kind(price)[token_kind],
        amount_nano=amount_nano,
        amount_minor=to_minor(amount_nano, currency),
    )


def _summed(
    lines: list[InvoiceLine], credit_nano: int, absorbed_nano: int, owed_nano: int, currency: str
) -> Composition:
    usage_nano = sum(line.amount_nano for line in lines)
    if usage_nano != credit_nano + absorbed_nano + owed_nano:
        raise LedgerMismatch(usage_nano, credit_nano + absorbed_nano + owed_nano)
    subtotal_minor = sum(line.amount_minor for line in lines)
    # Usage that was prepaid in full leaves nothing to pay, however its lines were rounded.
    credit_minor = (
        subtotal_minor if owed_nano == 0 else min(subtotal_minor, to_minor(credit_nano + absorbed_nano, currency))
    )
    total_minor = subtotal_minor - credit_minor
    return Composition(
        lines=lines,
        usage_nano=usage_nano,
        credit_nano=credit_nano,
        absorbed_nano=absorbed_nano,
        owed_nano=owed_nano,
        subtotal_minor=subtotal_minor,
        credit_minor=credit_minor,
        total_minor=total_minor,
        rounding_nano=from_minor(total_minor, currency) - owed_nano,
    )

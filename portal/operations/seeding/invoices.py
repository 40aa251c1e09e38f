"""The invoices of the months that are over: of everyone who called, paid from credit."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.apps import apps
from django.conf import settings
from django.db import connection

from billing.money import nano_per_minor
from billing.pricing.rating import KINDS_SQL
from portal.operations.seeding.months import Month, table_of
from portal.operations.seeding.plan import Say

_MINOR = nano_per_minor("USD")
# A tie goes to the even cent.
_ROUNDED = f"(amount + {_MINOR // 2} - (amount %% {2 * _MINOR} = {_MINOR // 2})::int) / {_MINOR}"
_LINES = f"""
WITH parts AS (
    SELECT invoice_id, model, price_id, SUM(prompt_tokens)::bigint AS prompt_tokens,
           SUM(cached_tokens)::bigint AS cached_tokens, SUM(completion_tokens)::bigint AS completion_tokens,
           0::bigint AS cache_write_tokens, 0::bigint AS reasoning_tokens,
           SUM(input_cost_nano)::bigint AS input_cost_nano, SUM(cached_cost_nano)::bigint AS cached_cost_nano,
           SUM(output_cost_nano)::bigint AS output_cost_nano, 0::bigint AS cache_write_cost_nano,
           0::bigint AS reasoning_cost_nano, 0::bigint AS minimum_cost_nano
      FROM {{table}} WHERE status <> 'failed' GROUP BY 1, 2, 3
)
INSERT INTO billing_invoice_line (
    invoice_id, position, kind, model, price_id, token_kind, tokens, unit_price_nano, amount_nano, amount_minor)
SELECT invoice_id, row_number() OVER (PARTITION BY invoice_id ORDER BY part.model, part.price_id,
         array_position(ARRAY['input', 'cached_input', 'output'], token_kind)),
       'usage', part.model, part.price_id, token_kind, tokens,
       CASE token_kind WHEN 'input' THEN price.input_nano WHEN 'output' THEN price.output_nano
            ELSE COALESCE(price.cached_input_nano, price.input_nano) END, amount, {_ROUNDED}
  FROM parts part JOIN billing_price price ON price.id = part.price_id
 CROSS JOIN LATERAL {KINDS_SQL} AS line (token_kind, tokens, amount)
 WHERE tokens <> 0
"""  # noqa: S608 - constants only
_INVOICES = """
INSERT INTO billing_invoice (
    id, organization_id, status, number, period, period_start, period_end, time_zone, currency, issuer, bill_to,
    bill_to_tax_id, email, usage_nano, credit_nano, absorbed_nano, rounding_nano, subtotal_minor, credit_minor,
    tax_minor, total_minor, created_at, drafted_at, finalized_at, due_at, sent_at, paid_at, void_reason)
SELECT lines.invoice_id, organization.id, 'paid',
       %(prefix)s || '-' || lpad((%(number)s + row_number() OVER (ORDER BY lines.invoice_id))::text, 6, '0'),
       %(period)s, %(since)s, %(until)s, 'UTC', 'USD', %(issuer)s, organization.name, '', account.email, lines.nano,
       lines.nano, 0, 0, lines.minor, lines.minor, 0, 0, %(issued)s, %(issued)s, %(issued)s, %(issued)s, %(issued)s,
       %(issued)s, ''
  FROM (SELECT invoice_id, SUM(amount_nano)::bigint AS nano, SUM(amount_minor)::bigint AS minor
          FROM billing_invoice_line WHERE invoice_id >= %(invoice)s AND invoice_id < %(invoice)s + %(organizations)s
         GROUP BY 1) lines
  JOIN portal_organization organization ON organization.id = %(organization)s + lines.invoice_id - %(invoice)s
  JOIN billing_account account ON account.organization_id = organization.id
"""
# Who had nothing but failures has no invoice.
_UNBIND = """
UPDATE {table} SET invoice_id = NULL WHERE NOT EXISTS (SELECT 1 FROM billing_invoice WHERE id = {table}.invoice_id)
"""


def make_invoices(months: list[Month], first_ids: dict[datetime, int | None], organizations: range, say: Say) -> None:
    """`first_ids` of `make_calls`: the records are bound to their invoices already."""
    series, _ = apps.get_model("billing", "InvoiceSeries").objects.get_or_create(prefix=settings.INVOICE_NUMBER_PREFIX)
    with connection.cursor() as cursor:
        for since, until in months:
            first_id = first_ids[since]
            if first_id is None:
                continue
            cursor.execute(_LINES.format(table=table_of(since)), {})
            cursor.execute(
                _INVOICES,
                {
                    "prefix": series.prefix,
                    "number": series.last_number,
                    "period": f"{since:%Y-%m}",
                    "since": since,
                    "until": until,
                    "issuer": settings.INVOICE_ISSUER,
                    "issued": until + timedelta(hours=6),
                    "invoice": first_id,
                    "organization": organizations[0],
                    "organizations": len(organizations),
                },
            )
            series.last_number += cursor.rowcount
            say(f"{cursor.rowcount:,} invoices of {since:%Y-%m}")
            cursor.execute(_UNBIND.format(table=table_of(since)))
    series.save()

"""Calls: usage records, what they move in the ledger, and the engines' receipts. The database makes them, in chunks.

Most calls agree with their receipt. Of the completed ones, some places in the row of numbers are calls that do not:
their record is corrected, was finished from the receipt, or has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from django.db import connection, transaction

from portal.operations.seeding.copying import next_id
from portal.operations.seeding.months import table_of
from portal.operations.seeding.plan import (
    DAILY_SWING,
    DEPLOYMENTS_PER_MODEL,
    MODELS,
    RECORDS_PER_CHUNK,
    Made,
    Say,
    Size,
)
from portal.operations.seeding.sessions import run_together

# Every so many calls, the call at that place.
DIFFERING, UNFINISHED, WITHOUT_RECEIPT = (40_000, 7), (8_000, 11), (250_000, 3)
# What the receipt of a differing call counts more.
TOKENS_MISSED = 7
# Receipts for each million records that nobody here knows of.
UNKNOWN_PER_MILLION = 2

_TENANTS = """
CREATE TEMP TABLE seeding_tenant ON COMMIT DROP AS
SELECT rank::int, %(organization)s + rank AS organization_id, %(key)s + key AS key_id, key_count,
       %(project)s + project AS project_id, project_count, %(credit)s + rank AS credit_account_id,
       %(grant)s + rank AS grant_id
  FROM unnest(%(ranks)s::bigint[], %(keys)s::bigint[], %(key_counts)s::bigint[], %(projects)s::bigint[],
              %(project_counts)s::bigint[]) AS tenant (rank, key, key_count, project, project_count)
"""
# An organization or key of rank r comes 1/(r + 1) as often as the first; time passes faster at night.
_CALLS = f"""
CREATE TEMP TABLE seeding_call ON COMMIT DROP AS
WITH drawn AS (
    SELECT n, (n + random()) / %(records)s AS part,
           LEAST(%(organizations)s, floor(exp(random() * ln(%(organizations)s + 1)))::int) - 1 AS rank,
           floor(LEAST({len(MODELS) - 1}, random() * random() * {len(MODELS) * 1.5}))::int AS which,
           floor(random() * {DEPLOYMENTS_PER_MODEL})::int AS deployment,
           random() AS key_draw, random() AS outcome, random() < 0.8 AS is_stream, random() AS user_draw,
           floor(exp(random_normal(6.6, 1.1)))::bigint + 1 AS prompt,
           GREATEST(0, random() * 2.8 - 1.8) AS cached_share,
           floor(exp(random_normal(5.0, 1.0)))::bigint + 1 AS produced,
           exp(random_normal(3.4, 0.8)) AS wait_ms, exp(random_normal(0, 0.25)) AS pace,
           (ARRAY['chat', 'chat', 'responses', 'messages'])[1 + floor(random() * 4)::int] AS protocol,
           (ARRAY['engine_overloaded', 'deadline_exceeded', 'device_fault'])[1 + floor(random() * 3)::int] AS error_code
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
), placed AS (
    SELECT drawn.*, tenant.*, model.*,
           LEAST(key_count, floor(exp(key_draw * ln(key_count + 1)))::bigint) - 1 AS key_rank,
           %(start)s::timestamptz + %(span)s::interval
             * (part + {DAILY_SWING} * sin(2 * pi() * %(days)s * part) / (2 * pi() * %(days)s)) AS started_at,
           CASE WHEN outcome < 0.94 THEN 'completed' WHEN outcome < 0.98 THEN 'cancelled' ELSE 'failed' END AS status
      FROM drawn JOIN seeding_tenant tenant USING (rank)
      JOIN unnest(%(models)s::text[], %(prices)s::bigint[], %(input)s::bigint[], %(cached)s::bigint[],
                  %(output)s::bigint[], %(deployments)s::bigint[], %(base_ms)s::float8[], %(token_ms)s::float8[])
           WITH ORDINALITY AS model (model, price_id, input_nano, cached_nano, output_nano, first_deployment_id,
                                     base_ms, token_ms, place) ON model.place = drawn.which + 1
), counted AS (
    SELECT *, floor(prompt * cached_share)::bigint AS cached,
           CASE status WHEN 'failed' THEN 0 ELSE produced END AS completion,
           CASE status WHEN 'failed' THEN NULL ELSE base_ms + prompt * 0.02 + wait_ms END AS ttft_ms
      FROM placed
), timed AS (
    SELECT *, COALESCE(ttft_ms, 50) + completion * token_ms * pace AS duration_ms, md5(n::text) AS noise,
           CASE WHEN status = 'failed' THEN 0 ELSE 1 END AS is_billed
      FROM counted
)
SELECT n, (lpad(to_hex(floor(extract(epoch FROM started_at) * 1000)::bigint), 12, '0') || '7' || substr(noise, 1, 3)
             || 'a' || substr(noise, 4, 14) || '0')::uuid AS request_id,
       organization_id, project_id + key_rank %% project_count AS project_id, key_id + key_rank AS api_key_id,
       first_deployment_id + deployment AS deployment_id, model, price_id, protocol, is_stream,
       CASE WHEN user_draw < 0.2 THEN 'user-' || floor(user_draw * 250)::int ELSE '' END AS end_user, status,
       started_at, started_at + make_interval(secs => duration_ms / 1000) AS finished_at, prompt, cached, completion,
       CASE status WHEN 'completed' THEN 'stop' ELSE '' END AS finish_reason,
       CASE status WHEN 'failed' THEN error_code ELSE '' END AS error_code, ttft_ms, duration_ms,
       -- Prices of a whole number of nano-units a token: nothing is rounded.
       is_billed * (prompt - cached) * input_nano AS input_cost, is_billed * cached * cached_nano AS cached_cost,
       completion * output_nano AS output_cost, credit_account_id, grant_id
  FROM timed
"""  # noqa: S608 - constants only
_RECORDS = """
INSERT INTO {table} (
    request_id, organization_id, project_id, api_key_id, deployment_id, model, price_id, protocol, is_stream, end_user,
    gateway_id, status, hold_nano, started_at, finished_at, prompt_tokens, cached_tokens, completion_tokens,
    finish_reason, error_code, ttft_ms, duration_ms, input_cost_nano, cached_cost_nano, output_cost_nano, invoice_id)
SELECT request_id, organization_id, project_id, api_key_id, deployment_id, model, price_id, protocol, is_stream,
       end_user, 'seed', status, 0, started_at, finished_at, prompt, cached, completion,
       finish_reason, error_code, ttft_ms, duration_ms, input_cost, cached_cost, output_cost,
       %(invoice)s::bigint + organization_id - %(organization)s
  FROM seeding_call WHERE started_at >= %(since)s AND started_at < %(until)s
"""
_TRANSACTIONS = """
INSERT INTO billing_ledger_transaction (id, kind, key, reason, created_at)
SELECT %(transaction)s + n, 'usage', 'usage:' || request_id, '', finished_at FROM seeding_call WHERE status <> 'failed'
"""
_ENTRIES = """
INSERT INTO billing_ledger_entry (id, transaction_id, account_id, grant_id, amount_nano)
SELECT %(entry)s + 2 * n + place, %(transaction)s + n, account_id, entry.grant_id, amount_nano
  FROM seeding_call CROSS JOIN LATERAL (
    VALUES (0, credit_account_id, seeding_call.grant_id, -(input_cost + cached_cost + output_cost)),
           (1, %(revenue)s::bigint, NULL::bigint, input_cost + cached_cost + output_cost)
  ) entry (place, account_id, grant_id, amount_nano) WHERE status <> 'failed'
"""


def _is_at(place: tuple[int, int]) -> str:
    return f"n %% {place[0]} = {place[1]} AND status = 'completed'"


_RECEIPTS = f"""
INSERT INTO billing_receipt (
    id, source, sequence, request_id, tenant, organization_id, model, status, prompt_tokens, cached_tokens,
    completion_tokens, reasoning_tokens, error_code, started_at, finished_at, ttft_ms, received_at, match_class,
    is_settled, note)
SELECT %(receipt)s + n, 'seed-' || deployment_id, n + 1, request_id, organization_id::text, organization_id, model,
       status, prompt, cached, completion + CASE WHEN {_is_at(DIFFERING)} THEN {TOKENS_MISSED} ELSE 0 END, 0,
       error_code, started_at, finished_at, ttft_ms, finished_at + interval '5 seconds',
       CASE WHEN {_is_at(DIFFERING)} THEN 'differ' WHEN {_is_at(UNFINISHED)} THEN 'unfinished' ELSE 'equal' END,
       true, ''
  FROM seeding_call WHERE NOT ({_is_at(WITHOUT_RECEIPT)}) AND error_code <> 'engine_overloaded'
"""  # noqa: S608 - constants only
_UNKNOWN_RECEIPTS = """
INSERT INTO billing_receipt (
    source, sequence, request_id, tenant, model, status, prompt_tokens, cached_tokens, completion_tokens,
    reasoning_tokens, error_code, started_at, finished_at, received_at, match_class, is_settled, note)
SELECT 'seed-other', n, gen_random_uuid(), 'someone else', %(model)s, 'completed', 100, 0, 10, 0, '', at, at, at,
       'engine_only', false, 'tenant ''someone else'' is no organization of ours'
  FROM generate_series(1, %(count)s) n CROSS JOIN LATERAL (
    SELECT %(end)s::timestamptz - %(span)s::interval * (n - 0.5) / %(count)s AS at) moment
"""


def make_calls(size: Size, made: Made, say: Say) -> dict[datetime, int | None]:
    """Returns the first id of the invoices of each month that is over, in order of rank; None for one that is not."""
    invoices = {
        since: next_id("billing.Invoice", size.organizations) if size.start <= since and until <= size.end else None
        for since, until in size.months()
    }
    values: dict[str, Any] = {
        "start": size.start,
        "end": size.end,
        "span": timedelta(days=size.days),
        "days": size.days,
        "records": size.records,
        "organizations": size.organizations,
        "organization": made.organization_ids[0],
        "transaction": next_id("billing.LedgerTransaction", size.records),
        "entry": next_id("billing.LedgerEntry", 2 * size.records),
        "receipt": next_id("billing.Receipt", size.records),
        "revenue": made.revenue_account_id,
        "models": list(MODELS),
        "prices": [price.price_id for price in made.prices],
        "deployments": [ids[0] for ids in made.deployment_ids],
        "input": [price.input_nano // 10**6 for price in made.prices],
        "cached": [(price.cached_input_nano or price.input_nano) // 10**6 for price in made.prices],
        "output": [price.output_nano // 10**6 for price in made.prices],
        "base_ms": [base_ms for base_ms, _ in MODELS.values()],
        "token_ms": [token_ms for _, token_ms in MODELS.values()],
    }
    tenants = _tenants(made)

    def make_chunk(first: int) -> str:
        last = min(first + RECORDS_PER_CHUNK, size.records) - 1
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_TENANTS, tenants)
            cursor.execute("ANALYZE seeding_tenant")
            # The same calls for the same place, whatever came before.
            cursor.execute("SELECT setseed(%s)", [first / size.records])
            cursor.execute(_CALLS, {**values, "first": first, "last": last})
            for since, until in size.months():
                month = {"since": since, "until": until, "invoice": invoices[since]}
                cursor.execute(_RECORDS.format(table=table_of(since)), {**values, **month})
            for statement in (_TRANSACTIONS, _ENTRIES, _RECEIPTS):
                cursor.execute(statement, values)
        return f"usage records {first + 1:,} to {last + 1:,} of {size.records:,}, with ledger transactions and receipts"

    run_together([partial(make_chunk, first) for first in range(0, size.records, RECORDS_PER_CHUNK)], say)
    unknown = max(1, size.records * UNKNOWN_PER_MILLION // 10**6)
    with connection.cursor() as cursor:
        cursor.execute(_UNKNOWN_RECEIPTS, {**values, "count": unknown, "model": next(iter(MODELS))})
    return invoices


def _tenants(made: Made) -> dict[str, int | list[int]]:
    def sizes(offsets: Sequence[int]) -> list[int]:
        return [after - before for before, after in pairwise(offsets)]

    return {
        "ranks": list(range(len(made.organization_ids))),
        "organization": made.organization_ids[0],
        "keys": list(made.key_offsets[:-1]),
        "key_counts": sizes(made.key_offsets),
        "key": made.first_key_id,
        "projects": list(made.project_offsets[:-1]),
        "project_counts": sizes(made.project_offsets),
        "project": made.first_project_id,
        "credit": made.credit_account_ids[0],
        "grant": made.grant_ids[0],
    }

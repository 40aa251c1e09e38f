"""Opens and finishes usage records, in batches, each batch one transaction.

Both are safe to repeat: a record is opened once and finished once, whoever comes first. Rows are taken in ascending
order of their ids, then wallets in ascending order of the organization, so that two gateways never deadlock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from billing.errors import RecordRefused
from billing.ledger.models import TransactionKind
from billing.ledger.posting import Posting, post
from billing.ledger.wallet import lock_wallets
from billing.pricing.rating import FREE, RatedCost, rate
from billing.usage.models import RecordStatus
from billing.usage.request_ids import ATTEMPTS

logger = logging.getLogger(__name__)

BILLED = frozenset({RecordStatus.COMPLETED, RecordStatus.CANCELLED})
END_USER_LIMIT = 256


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """What is known before the first byte. Odd values are refused here, so that one row cannot fail its batch."""

    request_id: UUID
    organization_id: int
    project_id: int
    api_key_id: int | None
    model: str
    price_id: int
    deployment_id: int | None
    protocol: str
    is_stream: bool
    hold_nano: int
    started_at: datetime
    gateway_id: str
    end_user: str = ""
    # False for an upstream without a journal.
    expects_receipt: bool = True
    # Which try of its operation, from 1.
    attempt: int = 1
    # What limits hold for it: estimates.
    reserved_input_tokens: int = 0
    reserved_output_tokens: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.attempt <= ATTEMPTS:
            raise ValueError(f"attempt is {self.attempt}; an operation has 1 to {ATTEMPTS}.")
        if self.hold_nano < 0:
            raise ValueError(f"hold_nano is {self.hold_nano}; a hold cannot be below zero.")
        if len(self.end_user) > END_USER_LIMIT or "\x00" in self.end_user:
            raise ValueError(f"end_user must have at most {END_USER_LIMIT} characters and no NUL.")
        if self.started_at.tzinfo is None:
            raise ValueError("started_at must be aware.")


@dataclass(frozen=True, slots=True)
class Statement:
    """What an upstream without a journal said at the end of its answer: its own id of the request, and its counts.

    Kept beside the record as a receipt of `source`, so that the upstream's bill can be held against it.
    """

    source: str
    upstream_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class FinishedRecord:
    """How a request ended. Prompt tokens include the cached ones and those written to the cache, completion tokens the
    reasoning ones."""

    request_id: UUID
    status: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    finish_reason: str
    error_code: str
    ttft_ms: float | None
    duration_ms: float | None
    finished_at: datetime
    is_estimated: bool = False
    cache_write_tokens: int = 0
    statement: Statement | None = None

    def __post_init__(self) -> None:
        if self.status not in RecordStatus.values or self.status == RecordStatus.STARTED:
            raise ValueError(f"status {self.status!r} is not completed, cancelled or failed.")
        parts_fit = self.cached_tokens + self.cache_write_tokens <= self.prompt_tokens
        parts_fit = parts_fit and 0 <= self.reasoning_tokens <= self.completion_tokens
        if not parts_fit or min(self.cached_tokens, self.cache_write_tokens) < 0:
            raise ValueError(
                f"prompt {self.prompt_tokens}, cached {self.cached_tokens}, completion {self.completion_tokens}, "
                f"reasoning {self.reasoning_tokens}: a part is larger than its whole, or below zero."
            )
        if self.finished_at.tzinfo is None:
            raise ValueError("finished_at must be aware.")


_OPEN = """
INSERT INTO billing_usage_record (request_id, organization_id, project_id, api_key_id, model, price_id, deployment_id,
    protocol, is_stream, hold_nano, started_at, gateway_id, end_user, expects_receipt, attempt,
    reserved_input_tokens, reserved_output_tokens, status)
SELECT opened.*, 'started'
  FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[],
              %s::text[], %s::boolean[], %s::bigint[], %s::timestamptz[], %s::text[], %s::text[], %s::boolean[],
              %s::smallint[], %s::bigint[], %s::bigint[])
    AS opened (request_id, organization_id, project_id, api_key_id, model, price_id, deployment_id, protocol, is_stream,
               hold_nano, started_at, gateway_id, end_user, expects_receipt, attempt, reserved_input_tokens,
               reserved_output_tokens)
  JOIN billing_account account ON account.organization_id = opened.organization_id
  JOIN billing_price price ON price.id = opened.price_id AND price.currency = account.currency
    AND (price.organization_id IS NULL OR price.organization_id = opened.organization_id)
 ORDER BY opened.request_id
ON CONFLICT (request_id) DO NOTHING
"""
_OPEN_FIELDS = (
    "request_id",
    "organization_id",
    "project_id",
    "api_key_id",
    "model",
    "price_id",
    "deployment_id",
    "protocol",
    "is_stream",
    "hold_nano",
    "started_at",
    "gateway_id",
    "end_user",
    "expects_receipt",
    "attempt",
    "reserved_input_tokens",
    "reserved_output_tokens",
)


def open_records(rows: Sequence[OpenRecord]) -> None:
    """Write the opening rows, all or none. A repeat of a row that is there already changes nothing.

    Raises RecordRefused, naming the first row whose organization, price or currency does not fit, or whose request id
    belongs to another call.
    """
    if not rows:
        return
    columns = [[getattr(row, name) for row in rows] for name in _OPEN_FIELDS]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_OPEN, columns)
        if cursor.rowcount < len(rows):
            _refuse_unless_repeated(rows)


def _refuse_unless_repeated(rows: Sequence[OpenRecord]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT request_id, organization_id, price_id, started_at FROM billing_usage_record"
            " WHERE request_id = ANY(%s::uuid[])",
            [[row.request_id for row in rows]],
        )
        present = {found[0]: found[1:] for found in cursor.fetchall()}
    for row in rows:
        if row.request_id not in present:
            raise RecordRefused(
                row.request_id,
                f"organization {row.organization_id} has no billing account in the currency of price {row.price_id},"
                " or that price is not its own",
            )
        if present[row.request_id] != (row.organization_id, row.price_id, row.started_at):
            raise RecordRefused(row.request_id, "its request id belongs to another call")


@dataclass(frozen=True, slots=True)
class StartedRow:
    """A locked record in status started, with the rates pinned on it."""

    request_id: UUID
    organization_id: int
    started_at: datetime
    input_nano: int
    cached_input_nano: int | None
    cache_write_nano: int | None
    output_nano: int
    reasoning_nano: int | None
    minimum_nano: int


_LOCK_STARTED = """
SELECT record.request_id, record.organization_id, record.started_at,
       price.input_nano, price.cached_input_nano, price.cache_write_nano, price.output_nano, price.reasoning_nano,
       price.minimum_nano
  FROM billing_usage_record record JOIN billing_price price ON price.id = record.price_id
 WHERE record.request_id = ANY(%s::uuid[]) AND record.status = 'started'
 ORDER BY record.request_id FOR NO KEY UPDATE OF record
"""
_FINAL_COLUMNS = {
    "request_id": "uuid",
    "status": "text",
    "prompt_tokens": "bigint",
    "cached_tokens": "bigint",
    "cache_write_tokens": "bigint",
    "completion_tokens": "bigint",
    "reasoning_tokens": "bigint",
    "finish_reason": "text",
    "error_code": "text",
    "ttft_ms": "float8",
    "duration_ms": "float8",
    "finished_at": "timestamptz",
    "is_estimated": "boolean",
}
# In the order of RatedCost's fields.
COST_COLUMNS = (
    "input_cost_nano",
    "cached_cost_nano",
    "output_cost_nano",
    "cache_write_cost_nano",
    "reasoning_cost_nano",
    "minimum_cost_nano",
)
_UPSTREAM = "upstream_id"
_WRITTEN = (*list(_FINAL_COLUMNS)[1:], *COST_COLUMNS, _UPSTREAM)
_TYPES = (*_FINAL_COLUMNS.values(), *["bigint"] * len(COST_COLUMNS), "text")
# The ids stand there twice: the array lets PostgreSQL leave out the months that have none of them.
_FINISH = f"""
UPDATE billing_usage_record record SET {", ".join(f"{name} = v.{name}" for name in _WRITTEN)}
  FROM unnest({", ".join(f"%s::{kind}[]" for kind in _TYPES)}) AS v (request_id, {", ".join(_WRITTEN)})
 WHERE record.request_id = v.request_id AND record.request_id = ANY(%s::uuid[]) AND record.status = 'started'
"""  # noqa: S608 - constants only


def finish_records(rows: Sequence[FinishedRecord]) -> dict[UUID, int]:
    """Finish the started records and post their ledger transactions, all in one transaction; returns each one's cost.

    A record that is final already keeps what it has, and its own cost is returned; of two rows for one request the
    first counts. A request id without a record is not in the answer: nothing was opened, so nothing is billed, and
    reconciliation reports the engine's receipt for it.
    """
    wanted: dict[UUID, FinishedRecord] = {}
    for row in rows:
        wanted.setdefault(row.request_id, row)
    if not wanted:
        return {}
    with transaction.atomic():
        started = _lock_started(list(wanted))
        costs = {row.request_id: cost_of(wanted[row.request_id].status, row, wanted[row.request_id]) for row in started}
        _write_final([wanted[row.request_id] for row in started], costs)
        _post_usage(started, costs)
        _keep_statements([wanted[row.request_id] for row in started])
        totals = {request_id: cost.total_nano for request_id, cost in costs.items()}
        return totals | _costs_of_final(wanted.keys() - totals.keys())


def cost_of(status: str, price: Any, counts: Any) -> RatedCost:
    """The billing rule: completed and cancelled requests pay for prompt and produced tokens, a failed one for nothing.

    `price` has the rates and `counts` the token counts as attributes (records, receipts and rows all do).
    """
    if status not in BILLED:
        return FREE
    return rate(
        price,
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
        counts.reasoning_tokens,
        counts.cache_write_tokens,
    )


def _lock_started(request_ids: list[UUID]) -> list[StartedRow]:
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_STARTED, [request_ids])
        return [StartedRow(*row) for row in cursor.fetchall()]


def _write_final(rows: list[FinishedRecord], costs: dict[UUID, RatedCost]) -> None:
    if not rows:
        return
    values = [
        (
            *(getattr(row, name) for name in _FINAL_COLUMNS),
            *costs[row.request_id],
            row.statement.upstream_id if row.statement else "",
        )
        for row in rows
    ]
    columns = [list(column) for column in zip(*values, strict=True)]
    with connection.cursor() as cursor:
        cursor.execute(_FINISH, [*columns, columns[0]])


def _post_usage(started: list[StartedRow], costs: dict[UUID, RatedCost]) -> None:
    paid = sorted(
        (row for row in started if costs[row.request_id].total_nano), key=lambda row: (row.started_at, row.request_id)
    )
    if not paid:
        return
    wallets = lock_wallets(row.organization_id for row in paid)
    post(
        [
            Posting(
                TransactionKind.USAGE,
                f"usage:{row.request_id}",
                wallets[row.organization_id].charge(costs[row.request_id].total_nano, at=row.started_at),
            )
            for row in paid
        ]
    )


_KEEP_STATEMENTS = """
INSERT INTO billing_receipt (source, sequence, upstream_id, request_id, tenant, organization_id, model, status,
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, error_code, started_at, finished_at, match_class,
    is_settled, note)
SELECT v.source, NULL, v.upstream_id, v.request_id, record.organization_id::text, record.organization_id, record.model,
       record.status, v.prompt_tokens, v.cached_tokens, v.completion_tokens, v.reasoning_tokens, record.error_code,
       record.started_at, record.finished_at, 'pending', false, ''
  FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
    AS v (request_id, source, upstream_id, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens)
  JOIN billing_usage_record record ON record.request_id = v.request_id
ON CONFLICT (source, request_id) WHERE sequence IS NULL DO NOTHING
"""


def _keep_statements(rows: list[FinishedRecord]) -> None:
    """What upstreams said, as receipts; the next run of reconciliation judges them like an engine's."""
    said = [(row.request_id, *astuple(row.statement)) for row in rows if row.statement is not None]
    if said:
        with connection.cursor() as cursor:
            cursor.execute(_KEEP_STATEMENTS, [list(column) for column in zip(*said, strict=True)])


def _costs_of_final(request_ids: set[UUID]) -> dict[UUID, int]:
    if not request_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT request_id, cost_nano FROM billing_usage_record"
            " WHERE request_id = ANY(%s::uuid[]) AND status <> 'started'",
            [list(request_ids)],
        )
        found = dict(cursor.fetchall())
    for request_id in request_ids - found.keys():
        logger.error("usage_record_missing request_id=%s", request_id)
    return found

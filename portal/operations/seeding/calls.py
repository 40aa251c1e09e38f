"""Calls: usage records and what they move in the ledger."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from billing.pricing.rating import FREE, RatedCost, rate
from portal.operations.seeding.copying import copy_rows, ids_of
from portal.operations.seeding.plan import DAILY_SWING, DEPLOYMENTS_PER_MODEL, MODELS, RECORDS_PER_COPY, Made, Say, Size

_RECORD_COLUMNS = (
    "request_id",
    "organization_id",
    "project_id",
    "api_key_id",
    "deployment_id",
    "model",
    "price_id",
    "protocol",
    "is_stream",
    "end_user",
    "gateway_id",
    "expects_receipt",
    "status",
    "hold_nano",
    "started_at",
    "finished_at",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "finish_reason",
    "error_code",
    "ttft_ms",
    "duration_ms",
    *(name.replace("_nano", "_cost_nano") for name in RatedCost._fields),
)


def make_calls(size: Size, made: Made, say: Say) -> None:
    chance = random.Random(size.records)
    for first in range(0, size.records, RECORDS_PER_COPY):
        numbers = range(first, min(first + RECORDS_PER_COPY, size.records))
        rows, paid = [], []
        for number in numbers:
            row, rank, cost = _call(number, size, made, chance)
            rows.append(row)
            if cost.total_nano:
                paid.append((row[0], rank, cost.total_nano, row[15]))
        copy_rows("billing.UsageRecord", _RECORD_COLUMNS, rows)
        transactions = ids_of("billing.LedgerTransaction", len(paid))
        copy_rows(
            "billing.LedgerTransaction",
            ("id", "kind", "key", "created_at"),
            ((transactions[n], "usage", f"usage:{row[0]}", row[3]) for n, row in enumerate(paid)),
        )
        entries = (
            entry
            for transaction_id, (_, rank, nano, _) in zip(transactions, paid, strict=True)
            for entry in (
                (transaction_id, made.credit_account_ids[rank], made.grant_ids[rank], -nano),
                (transaction_id, made.revenue_account_id, None, nano),
            )
        )
        copy_rows("billing.LedgerEntry", ("transaction_id", "account_id", "grant_id", "amount_nano"), entries)
        say(f"{numbers.stop:,} of {size.records:,} usage records with their ledger transactions")


def _call(number: int, size: Size, made: Made, chance: random.Random) -> tuple[tuple[Any, ...], int, RatedCost]:
    """One record; the rank of its organization; its cost."""
    draw = chance.random
    started_at = size.end - timedelta(days=size.days) * (1 - progress((number + draw()) / size.records, size.days))
    rank = rank_of(draw(), len(made.organization_ids))
    low, high = made.key_offsets[rank], made.key_offsets[rank + 1]
    key = low + min(high - low - 1, rank_of(draw(), high - low))
    which = min(len(MODELS) - 1, int(draw() * draw() * len(MODELS) * 1.5))
    price = made.prices[which]
    base_ms, token_ms = MODELS[price.model]
    outcome = draw()
    status = "completed" if outcome < 0.94 else "cancelled" if outcome < 0.98 else "failed"
    prompt = int(math.exp(chance.gauss(6.6, 1.1))) + 1
    cached = int(prompt * draw()) if draw() < 0.35 else 0
    completion = 0 if status == "failed" else int(math.exp(chance.gauss(5.0, 1.0))) + 1
    ttft_ms = None if status == "failed" else base_ms + prompt * 0.02 + math.exp(chance.gauss(3.4, 0.8))
    duration_ms = (ttft_ms or 50.0) + completion * token_ms * math.exp(chance.gauss(0, 0.25))
    cost = FREE if status == "failed" else rate(price, prompt, cached, completion)
    row = (
        _request_id(started_at, chance),
        made.organization_ids[rank],
        made.project_ids[rank],
        made.first_key_id + key,
        made.deployment_ids[which][int(draw() * DEPLOYMENTS_PER_MODEL)],
        price.model,
        price.price_id,
        ("chat", "chat", "responses", "messages")[int(draw() * 4)],
        draw() < 0.8,
        f"user-{int(draw() * 50)}" if draw() < 0.2 else "",
        "seed",
        False,
        status,
        0,
        started_at,
        started_at + timedelta(milliseconds=duration_ms),
        prompt,
        cached,
        completion,
        "stop" if status == "completed" else "",
        ("engine_overloaded", "deadline_exceeded", "device_fault")[int(draw() * 3)] if status == "failed" else "",
        ttft_ms,
        duration_ms,
        *cost,
    )
    return row, rank, cost


def progress(part: float, days: int) -> float:
    """Time passes faster at night: fewer records there. Rises from 0 to 1."""
    return part + DAILY_SWING * math.sin(2 * math.pi * days * part) / (2 * math.pi * days)


def rank_of(part: float, count: int) -> int:
    """0 to count - 1; rank r comes 1/(r + 1) as often as the first."""
    return min(count - 1, int(math.exp(part * math.log(count + 1))) - 1)


def _request_id(at: datetime, chance: random.Random) -> UUID:
    milliseconds = int(at.timestamp() * 1000)
    return UUID(
        int=(milliseconds << 80) | (7 << 76) | (chance.getrandbits(12) << 64) | (2 << 62) | chance.getrandbits(62)
    )

"""Usage records made through billing's own services, so that ledger and balances follow."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from billing.pricing.selectors import current_price
from billing.usage.services import FinishedRecord, OpenRecord, finish_records, open_records
from portal.api_keys.models import ApiKey

STATUSES = ["completed"] * 17 + ["cancelled"] * 2 + ["failed"]


def use(
    key: ApiKey,
    model: str,
    *,
    started_at: datetime,
    prompt_tokens: int = 1000,
    cached_tokens: int = 0,
    completion_tokens: int = 100,
    status: str = "completed",
    ttft_ms: float | None = 180.0,
    price_at: datetime | None = None,
) -> uuid.UUID:
    """One call from its opening to its end."""
    opened, finished = call(
        key,
        model,
        started_at=started_at,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        status=status,
        ttft_ms=ttft_ms,
        price_at=price_at,
    )
    open_records([opened])
    finish_records([finished])
    return opened.request_id


def call(
    key: ApiKey,
    model: str,
    *,
    started_at: datetime,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
    status: str,
    ttft_ms: float | None,
    price_at: datetime | None,
) -> tuple[OpenRecord, FinishedRecord]:
    """What is written of a call at its opening and at its end."""
    price = current_price(model, price_at or started_at)
    assert price is not None, "give the model a price first"
    request_id = uuid.uuid4()
    duration_ms = (ttft_ms or 95.0) + 14.0 * completion_tokens
    opened = OpenRecord(
        request_id=request_id,
        organization_id=key.organization_id,
        project_id=key.project_id,
        api_key_id=key.id,
        model=model,
        price_id=price.price_id,
        deployment_id=None,
        protocol="chat",
        is_stream=True,
        hold_nano=0,
        started_at=started_at,
        gateway_id="seed",
        expects_receipt=False,
    )
    finished = FinishedRecord(
        request_id=request_id,
        status=status,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        reasoning_tokens=0,
        finish_reason="stop" if status == "completed" else "",
        error_code="engine_unavailable" if status == "failed" else "",
        ttft_ms=ttft_ms,
        duration_ms=duration_ms,
        finished_at=started_at + timedelta(milliseconds=duration_ms),
    )
    return opened, finished


def use_for_days(
    keys: Sequence[ApiKey],
    model: str,
    *,
    now: datetime,
    days: int,
    calls_per_day: int,
    price_at: datetime | None = None,
) -> None:
    """A plausible month: busier on workdays, growing, always the same for the same arguments.

    Each call is rated at the price of its own time, or all at that of `price_at`: a model just made had none before.
    """
    chance = random.Random(7)
    calls = []
    for days_ago in range(days - 1, -1, -1):
        date = now - timedelta(days=days_ago)
        growth = 0.35 + 0.65 * (days - days_ago) / days
        weekend = 0.3 if date.weekday() >= 5 else 1.0
        for _ in range(max(1, round(calls_per_day * growth * weekend * chance.uniform(0.7, 1.2)))):
            started_at = date - timedelta(seconds=chance.uniform(1, 36_000 if days_ago else 7_200))
            prompt_tokens = chance.randrange(300, 6000)
            status = chance.choice(STATUSES)
            calls.append(
                call(
                    chance.choice(keys),
                    model,
                    started_at=started_at,
                    prompt_tokens=prompt_tokens,
                    cached_tokens=int(prompt_tokens * chance.choice([0, 0, 0.4, 0.8])),
                    completion_tokens=0 if status == "failed" else chance.randrange(20, 900),
                    status=status,
                    ttft_ms=None if status == "failed" else chance.uniform(90, 420),
                    price_at=price_at,
                )
            )
    open_records([opened for opened, _ in calls])
    finish_records([finished for _, finished in calls])

"""Builds what billing works on: organizations with an account, prices, and calls that were opened and finished."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from billing.accounts.models import BillingAccount
from billing.accounts.services import change_credit_limit, open_account
from billing.ledger.services import grant_credit
from billing.pricing.models import Price
from billing.pricing.services import set_price
from billing.reconciliation.services import EngineReceipt
from billing.usage.services import FinishedRecord, OpenRecord, finish_records, open_records
from portal.models import Organization

USD = 1_000_000_000
# Ordinary noon of an ordinary month.
NOON = datetime(2026, 5, 15, 12, tzinfo=UTC)

_numbers = itertools.count(1)


def make_account(
    *,
    credit_nano: int = 0,
    credit_limit_nano: int = 0,
    time_zone: str = "UTC",
    currency: str = "USD",
    name: str = "Ada",
) -> BillingAccount:
    """A new organization's account, with credit if asked for."""
    number = next(_numbers)
    organization = Organization.objects.create(name=f"{name} {number}", slug=f"org-{uuid.uuid4().hex[:12]}")
    account = open_account(
        organization_id=organization.id, email="ada@example.com", currency=currency, time_zone=time_zone
    )
    if credit_limit_nano:
        account = change_credit_limit(organization_id=organization.id, credit_limit_nano=credit_limit_nano)
    if credit_nano:
        grant_credit(
            organization_id=organization.id, amount_nano=credit_nano, reason="test", key=f"test:{uuid.uuid4()}"
        )
    return account


def make_price(model: str = "m", *, at: datetime = datetime(2020, 1, 1, tzinfo=UTC), **figures: Any) -> Price:
    """The default list price, $0.40 / $0.10 / $2.03 per million, unless told otherwise."""
    defaults: dict[str, Any] = {
        "input_nano": 400_000_000,
        "cached_input_nano": 100_000_000,
        "output_nano": 2_030_000_000,
        "actor_id": None,
    }
    return set_price(model=model, effective_from=at, **{**defaults, **figures})


def opening(account: BillingAccount, price: Price, **fields: Any) -> OpenRecord:
    defaults: dict[str, Any] = {
        "request_id": uuid.uuid4(),
        "organization_id": account.organization_id,
        "project_id": 1,
        "api_key_id": 1,
        "model": price.model,
        "price_id": price.id,
        "deployment_id": 1,
        "protocol": "chat",
        "is_stream": True,
        "hold_nano": 1_000_000,
        "started_at": NOON,
        "gateway_id": "gateway-1",
    }
    return OpenRecord(**{**defaults, **fields})


def ending(request_id: uuid.UUID, **fields: Any) -> FinishedRecord:
    defaults: dict[str, Any] = {
        "request_id": request_id,
        "status": "completed",
        "prompt_tokens": 1000,
        "cached_tokens": 900,
        "completion_tokens": 100,
        "reasoning_tokens": 0,
        "finish_reason": "stop",
        "error_code": "",
        "ttft_ms": 12.5,
        "duration_ms": 250.0,
        "finished_at": NOON + timedelta(seconds=1),
    }
    return FinishedRecord(**{**defaults, **fields})


def make_calls(account: BillingAccount, price: Price, count: int = 1, **fields: Any) -> list[uuid.UUID]:
    """Opened and finished calls; `fields` go to the opening or to the ending, whichever knows them."""
    open_fields = {name: value for name, value in fields.items() if name in OpenRecord.__slots__}
    end_fields = {name: value for name, value in fields.items() if name not in open_fields}
    end_fields.setdefault("finished_at", open_fields.get("started_at", NOON) + timedelta(seconds=1))
    rows = [opening(account, price, **open_fields) for _ in range(count)]
    open_records(rows)
    finish_records([ending(row.request_id, **end_fields) for row in rows])
    return [row.request_id for row in rows]


def receipt(
    sequence: int, request_id: uuid.UUID, account: BillingAccount | None = None, **fields: Any
) -> EngineReceipt:
    """What the engine says of a call made by `make_calls`."""
    defaults: dict[str, Any] = {
        "model": "engine-model",
        "status": "completed",
        "prompt_tokens": 1000,
        "cached_tokens": 900,
        "completion_tokens": 100,
        "reasoning_tokens": 0,
        "error_code": "",
        "started_at": NOON,
        "finished_at": NOON + timedelta(seconds=1),
        "ttft_ms": 10.0,
        "tenant": str(account.organization_id) if account else "",
    }
    return EngineReceipt(sequence=sequence, request_id=request_id, **{**defaults, **fields})

"""From one streamed call of the official client to an invoice line, on the real model."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import openai

from tests.end_to_end.books import check_books, effective_records, ledger_sum
from tests.end_to_end.stack import MODEL, Stack

QUESTION = "What is the capital of France?"
# In nano-units a million tokens; the default price list.
PRICE = {"input": 400_000_000, "cached": 100_000_000, "output": 2_030_000_000}
CALLS = 100


def finished_record(stack: Stack, request_id: str) -> dict[str, Any]:
    columns = (
        "status, prompt_tokens, cached_tokens, completion_tokens, finish_reason, ttft_ms, duration_ms, cost_nano, model"
    )
    (row,) = stack.await_rows(
        f"SELECT {columns} FROM billing_usage_record WHERE request_id = %s AND status <> 'started'",  # noqa: S608
        request_id,
    )
    return dict(zip(columns.split(", "), row, strict=True))


def test_a_streamed_answer_of_the_real_model_is_recorded_and_charged(real_stack: Stack) -> None:
    client = real_stack.client()
    balance_before = ledger_sum(real_stack, "credit")
    response = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(response.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert "Paris" in text
    assert sum(1 for chunk in chunks if chunk.choices and chunk.choices[0].delta.content) > 1, "it streams"

    record = finished_record(real_stack, response.headers["x-request-id"])
    assert record["status"] == "completed"
    assert record["model"] == MODEL
    assert record["prompt_tokens"] == usage.prompt_tokens
    assert record["completion_tokens"] == usage.completion_tokens
    assert 0 < record["ttft_ms"] <= record["duration_ms"]
    expected = (
        (record["prompt_tokens"] - record["cached_tokens"]) * PRICE["input"]
        + record["cached_tokens"] * PRICE["cached"]
        + record["completion_tokens"] * PRICE["output"]
    )
    assert record["cost_nano"] * 1_000_000 == expected
    assert balance_before - ledger_sum(real_stack, "credit") == record["cost_nano"]


def test_streamed_and_plain_answers_are_the_same(real_stack: Stack) -> None:
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
    }
    client = real_stack.client()
    plain = client.chat.completions.create(**request)
    with client.chat.completions.create(**request, stream=True) as events:
        streamed = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert streamed == plain.choices[0].message.content


def test_the_receipt_of_the_engine_agrees_with_the_record(real_stack: Stack) -> None:
    response = real_stack.client().chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
    )
    request_id = response.headers["x-request-id"]
    record = finished_record(real_stack, request_id)
    (receipt,) = real_stack.await_rows(
        "SELECT prompt_tokens, cached_tokens, completion_tokens, match_class FROM billing_receipt"
        " WHERE request_id = %s AND is_settled",
        request_id,
    )
    assert receipt == (record["prompt_tokens"], record["cached_tokens"], record["completion_tokens"], "equal")


def test_a_hundred_calls_match_and_the_invoice_is_their_sum(scripted_stack: Stack) -> None:
    request_ids = asyncio.run(call_often(scripted_stack))
    assert len(set(request_ids)) == CALLS
    scripted_stack.await_rows(
        "SELECT 1 FROM (SELECT count(*) AS n FROM billing_receipt WHERE is_settled AND request_id = ANY(%s::uuid[])) c"
        " WHERE n = %s",
        request_ids,
        CALLS,
    )
    classes = scripted_stack.rows(
        "SELECT match_class, count(*) FROM billing_receipt WHERE request_id = ANY(%s::uuid[]) GROUP BY 1", request_ids
    )
    assert classes == [("equal", CALLS)], "the match rate is 100 % before any repair"
    check_books(scripted_stack)

    period = datetime.now(UTC).strftime("%Y-%m")
    scripted_stack.manage("run_invoices", "--period", period, "--preview")
    records = effective_records(scripted_stack)
    total = sum(cost for _, _, _, cost in records.values())
    assert total > 0
    lines = scripted_stack.rows(
        "SELECT line.token_kind, line.tokens, line.amount_nano FROM billing_invoice_line line"
        " JOIN billing_invoice invoice ON invoice.id = line.invoice_id WHERE invoice.period = %s",
        period,
    )
    assert sum(amount for _, _, amount in lines) == total == ledger_sum(scripted_stack, "revenue")
    served = [row for row in records.values() if row[0] in ("completed", "cancelled")]
    assert sum(tokens for kind, tokens, _ in lines if kind == "output") == sum(row[2] for row in served)
    assert sum(tokens for kind, tokens, _ in lines if kind != "output") == sum(row[1] for row in served)


async def call_often(stack: Stack) -> list[str]:
    """A hundred calls of different sizes, some streamed, eight at a time."""
    gate = asyncio.Semaphore(8)

    async def call(client: openai.AsyncOpenAI, number: int) -> str:
        async with gate:
            response = await client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"TOKENS:{1 + number % 37} Call number {number}."}],
                stream=number % 2 == 0,
            )
            if number % 2 == 0:
                async for _ in response.parse():
                    pass
            return str(response.headers["x-request-id"])

    async with openai.AsyncOpenAI(base_url=stack.api_url, api_key=stack.demo_key, max_retries=0) as client:
        return await asyncio.gather(*(call(client, number) for number in range(CALLS)))

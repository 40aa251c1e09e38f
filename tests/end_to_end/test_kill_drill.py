"""kill -9 of each program, once, under eight concurrent streams: no record and no cent is lost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai
import psycopg
import pytest

from tests.end_to_end.books import check_books, effective_records, held, unsettled_receipts
from tests.end_to_end.stack import MODEL, PATIENCE_S, Stack

STREAMS = 8
# None of these is on the way of tokens: every stream ends as if nothing had happened.
ASIDE = ("worker", "valkey", "postgres")
# Without these no stream comes to its end: it stands still until the kill, which so falls into its middle.
ON_THE_WAY = ("engine", "web")
TOKENS = 60
PROMPTS = dict.fromkeys(ASIDE, f"TOKENS:{TOKENS} PACE:20") | dict.fromkeys(ON_THE_WAY, f"TOKENS:{TOKENS} STALL:9")
# Reconciliation gives a gateway 60 s to finish a record before it does so itself.
SETTLE_TIMEOUT_S = 300.0


@dataclass
class Call:
    """One stream as its client saw it."""

    request_id: str = ""
    text: str = ""
    usage: Any = None
    error: Exception | None = None


@dataclass
class Drill:
    calls: list[Call] = field(default_factory=list)


@pytest.fixture(scope="module")
def drill() -> Drill:
    return Drill()


async def stream(client: openai.AsyncOpenAI, call: Call, prompt: str) -> None:
    try:
        response = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            stream_options={"include_usage": True},
        )
        call.request_id = response.headers["x-request-id"]
        async for chunk in response.parse():
            if chunk.choices and chunk.choices[0].delta.content:
                call.text += chunk.choices[0].delta.content
            call.usage = chunk.usage or call.usage
    except (openai.APIError, httpx2.HTTPError) as error:
        call.error = error


async def kill_under_load(stack: Stack, victim: str) -> list[Call]:
    calls = [Call() for _ in range(STREAMS)]
    client = openai.AsyncOpenAI(base_url=stack.api_url, api_key=stack.demo_key, max_retries=0, timeout=PATIENCE_S)
    async with client, asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(stream(client, call, PROMPTS[victim]))
        async with asyncio.timeout(PATIENCE_S):
            while not all(call.text for call in calls):  # noqa: ASYNC110  # streams of a client know no event
                await asyncio.sleep(0.02)
        old_pid = await asyncio.to_thread(stack.kill, victim)
        await asyncio.to_thread(stack.await_successor, victim, old_pid)
    return calls


@pytest.mark.parametrize("victim", [*ASIDE, *ON_THE_WAY])
def test_service_returns_after_a_kill(scripted_stack: Stack, drill: Drill, victim: str) -> None:
    assert scripted_stack.demo_key
    calls = asyncio.run(kill_under_load(scripted_stack, victim))
    drill.calls += calls
    if victim in ASIDE:
        assert [call.error for call in calls] == [None] * STREAMS
        assert [call.usage.completion_tokens for call in calls] == [TOKENS] * STREAMS
    else:
        assert all(call.error or call.usage is None for call in calls), "the kill came after the last byte"
    serve_one_more(scripted_stack, drill)


def serve_one_more(stack: Stack, drill: Drill) -> None:
    """The service takes calls again, at the latest some seconds after its parts are back."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        call = Call()
        try:
            response = stack.client().chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": "SAY: Back again."}]
            )
            completion = response.parse()
        except openai.APIError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)
            continue
        call.request_id = response.headers["x-request-id"]
        call.text = completion.choices[0].message.content or ""
        call.usage = completion.usage
        assert call.text == "Back again."
        drill.calls.append(call)
        return


def test_no_record_and_no_cent_is_lost(scripted_stack: Stack, drill: Drill) -> None:
    assert len(drill.calls) >= 5 * (STREAMS + 1), "runs after the kills"
    await_settled(scripted_stack)
    records = effective_records(scripted_stack)
    for call in drill.calls:
        status, _, completion_tokens, cost_nano = records[call.request_id]
        if call.usage is not None:
            assert status == "completed"
            assert completion_tokens == call.usage.completion_tokens
            assert cost_nano > 0
        else:
            assert status in ("completed", "cancelled", "failed")
            assert completion_tokens >= len(call.text.split())
    check_books(scripted_stack)


def await_settled(stack: Stack) -> None:
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            if held(stack) == 0 and not unsettled_receipts(stack):
                return
        except psycopg.OperationalError:
            pass  # the server of the last kill may still be recovering
        assert time.monotonic() < deadline, (held(stack), unsettled_receipts(stack))
        time.sleep(0.5)

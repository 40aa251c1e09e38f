"""Chat Completions with OpenAI's own client, against a real server, engine, PostgreSQL and Valkey."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from tests.api.live.service import MODEL, PATIENCE_S, Account, Engine, at_some_pace, eventually, make_model


def test_a_stream_arrives_token_by_token(each_account: Account) -> None:
    def attempt(pace: float) -> list[str] | None:
        prompt = f"PACE:{pace} SAY: one two three four five"
        chunks = each_account.client().chat.completions.create(**each_account.chat(prompt), stream=True)
        texts = [text for chunk in chunks for choice in chunk.choices if (text := choice.delta.content)]
        assert "".join(texts) == "one two three four five"
        return texts if len(texts) == 5 else None

    assert at_some_pace(attempt)[0] == "one"


def test_a_stream_is_whole_and_recorded(each_account: Account) -> None:
    stream = each_account.client().chat.completions.create(
        **each_account.chat("SAY: one two three four five"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == "one two three four five"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert len({chunk.id for chunk in chunks}) == 1

    record = each_account.record()
    assert chunks[0].id == f"chatcmpl-{record.request_id.hex}"
    assert (record.status, record.is_stream, record.protocol) == ("completed", True, "chat")
    assert record.prompt_tokens == chunks[-1].usage.prompt_tokens
    assert record.completion_tokens == chunks[-1].usage.completion_tokens == 5
    assert 0 < record.ttft_ms <= record.duration_ms
    each_account.assert_books_agree()


def test_the_time_to_the_first_token_holds_the_wait_for_the_record(account: Account) -> None:
    """The engine's token is there at once; the caller gets it when the opening row has committed."""
    call = {**account.chat("SAY: one two"), "stream": True}
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE billing_usage_record IN SHARE MODE")
            answer = pool.submit(lambda: list(account.client().chat.completions.create(**call)))
            eventually(lambda: is_awaited(cursor))
            time.sleep(0.5)
            assert not answer.done()
        answer.result(PATIENCE_S)
    assert account.record().ttft_ms > 300


def is_awaited(cursor: Any) -> bool:
    """Whether somebody waits for a lock on the usage records."""
    cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'billing_usage_record'::regclass")
    return cursor.fetchone() is not None


def test_a_plain_answer_costs_the_same_as_a_stream(account: Account) -> None:
    client = account.client()
    plain = client.chat.completions.create(**account.chat("CACHED:4 SAY: a b c"))
    stream = list(client.chat.completions.create(**account.chat("CACHED:4 SAY: a b c"), stream=True))

    assert plain.choices[0].message.content == "a b c"
    assert plain.usage is not None
    assert plain.usage.prompt_tokens_details is not None
    assert plain.usage.prompt_tokens_details.cached_tokens == 4
    assert not any(chunk.usage for chunk in stream)
    first, second = account.records()
    assert first.cost_nano == second.cost_nano > 0
    assert first.cached_tokens == second.cached_tokens == 4
    account.assert_books_agree()


def test_the_record_is_final_when_the_stream_says_done(each_account: Account) -> None:
    with each_account.http.stream(
        "POST", "/v1/chat/completions", json=each_account.chat("SAY: x", stream=True)
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert [record.status for record in each_account.records()] == ["completed"]


def test_headers_of_a_stream(each_account: Account) -> None:
    headers = {"x-request-id": "my-own-id"}
    with each_account.http.stream(
        "POST", "/v1/chat/completions", json=each_account.chat("SAY: x", stream=True), headers=headers
    ) as answer:
        answer.read()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert answer.headers["x-request-id"] == "my-own-id"
    assert answer.headers["request-id"] == str(each_account.record().request_id)
    assert answer.headers["openai-processing-ms"].isdigit()
    assert answer.headers["openai-organization"] == each_account.organization.slug


def test_tool_calls_stream_with_one_id_and_end_as_tool_calls(account: Account) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    chunks = list(
        account.client().chat.completions.create(
            **account.chat("The weather in 'Paris'?"), tools=[tool], tool_choice="required", stream=True
        )
    )
    assert chunks[0].choices[0].delta.content is None
    calls = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.id for call in calls if call.id] == [calls[0].id]
    assert calls[0].type == "function"
    assert all(call.index == 0 for call in calls)
    assert "city" in json.loads("".join(call.function.arguments or "" for call in calls))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_may_be_required_of_some_tools_only(account: Account) -> None:
    names = ("get_weather", "add", "search")
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    functions = [{"name": name, "parameters": parameters} for name in names]
    chat = account.client().chat.completions.create(
        **account.chat("The weather, please: use get_weather"),
        tools=[{"type": "function", "function": function} for function in functions],
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": name}} for name in names[1:]],
            },
        },
    )
    assert chat.choices[0].message.tool_calls is not None
    assert {call.function.name for call in chat.choices[0].message.tool_calls} <= {"add", "search"}
    response = account.client().responses.create(
        model=MODEL,
        input="The weather, please: use get_weather",
        tools=[{"type": "function", "strict": False, **function} for function in functions],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": name} for name in names[1:]],
        },
    )
    assert {item.name for item in response.output} <= {"add", "search"}
    assert [item.type for item in response.output] == ["function_call"]


def test_several_choices_share_one_stream_and_the_prompt_counts_once(account: Account) -> None:
    answer = account.client().chat.completions.create(**account.chat("SAY: a b c", n=3))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    one = account.client().chat.completions.create(**account.chat("SAY: a b c"))
    assert one.usage is not None
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.usage.completion_tokens == 3 * one.usage.completion_tokens


def test_reasoning_comes_apart_from_the_text(account: Account) -> None:
    answer = account.client().chat.completions.create(**account.chat("THINK: let me see SAY: yes"))
    message = answer.choices[0].message
    assert message.content == "yes"
    assert message.model_extra is not None
    assert "let me see" in message.model_extra["reasoning_content"]
    record = account.record()
    assert record.reasoning_tokens > 0


def test_several_prompts_of_legacy_completions_are_several_records(account: Account) -> None:
    answer = account.client().completions.create(model=MODEL, prompt=["SAY: one", "SAY: two"], max_tokens=8)
    assert [choice.text.strip() for choice in answer.choices] == ["one", "two"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(account.records()) == 2
    account.assert_books_agree()


def test_the_fingerprint_is_on_every_answer_and_survives_a_restart(account: Account, folder: Path) -> None:
    engine = Engine(folder)
    name = f"restarted-{uuid.uuid4().hex[:8]}"
    make_model(name, engine.address)
    client = account.client()

    def fingerprints() -> set[str | None]:
        chat = {**account.chat("SAY: a b"), "model": name}
        plain = client.chat.completions.create(**chat)
        text = client.completions.create(model=name, prompt=["SAY: a", "SAY: b"])
        chunks = client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
        texts = client.completions.create(model=name, prompt="SAY: a", stream=True)
        return {each.system_fingerprint for each in (plain, text, *chunks, *texts)}

    seen: set[str | None] = set()
    for _ in range(2):
        engine.start()
        try:
            eventually(lambda: account.post("SAY: x", model=name).status_code == 200)
            seen |= fingerprints()
        finally:
            engine.stop()
    (fingerprint,) = seen
    assert fingerprint is not None
    assert re.fullmatch("fp_[0-9a-f]{12}", fingerprint)


def test_models_have_the_shape_of_the_dialect_that_asks(account: Account) -> None:
    openai_list = account.client().models.list()
    assert MODEL in [model.id for model in openai_list.data]
    assert account.client().models.retrieve(MODEL).owned_by

    page = account.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert page["data"][0]["type"] == "model"
    assert page["has_more"] is False
    assert page["first_id"] == page["data"][0]["id"]


def test_a_repeat_under_one_idempotency_key_is_charged_once(account: Account) -> None:
    headers = {"Idempotency-Key": "order-66"}
    first = account.http.post("/v1/chat/completions", json=account.chat("SAY: once"), headers=headers)
    again = account.http.post("/v1/chat/completions", json=account.chat("SAY: once"), headers=headers)
    other = account.http.post("/v1/chat/completions", json=account.chat("SAY: other"), headers=headers)
    assert first.status_code == 200
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert other.status_code == 409
    assert len(account.records()) == 1
    account.assert_books_agree()


def test_a_plain_call_costs_little_cpu(account: Account) -> None:
    """What a slow path or much middleware adds shows here: a call costs some ms, a look at a model a tenth of that."""

    def cost_s(ask: Callable[[], object], count: int) -> float:
        before = account.web.cpu_s()
        for _ in range(count):
            ask()
        return (account.web.cpu_s() - before) / count

    for _ in range(10):
        account.post("SAY: warm")
    shares = []
    # The least of some rounds: what else runs in the process costs in some of them, what the call does in all.
    for _ in range(10):
        look_s = cost_s(lambda: account.http.get(f"/v1/models/{MODEL}"), 300)
        shares.append(cost_s(lambda: account.post("SAY: hi"), 100) / look_s)
        if shares[-1] < 40:
            return
    raise AssertionError(shares)

"""Anthropic Messages with its own client, and the same charge whatever the dialect."""

from __future__ import annotations

import re
from typing import Any

import anthropic
import pytest

from tests.api.live.service import MODEL, Account, at_some_pace, make_account

TOOL: Any = {
    "name": "add",
    "description": "Add two integers",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def client_of(account: Account, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=account.web.url, api_key=account.secret, max_retries=0, _strict_response_validation=True, **options
    )


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_stream_is_assembled_and_recorded(each_account: Account) -> None:
    client = client_of(each_account)
    with client.messages.stream(
        model=MODEL, max_tokens=64, messages=user("THINK: hm hm SAY: one two three"), thinking={"type": "adaptive"}
    ) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert "signature" in kinds
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.stop_reason == "end_turn"
    record = each_account.record()
    assert (record.protocol, record.prompt_tokens) == ("messages", message.usage.input_tokens)
    assert (record.completion_tokens, record.reasoning_tokens) == (message.usage.output_tokens, 2)
    each_account.assert_books_agree()


def test_tool_round_trip(account: Account) -> None:
    client = client_of(account)
    asked = user("Add 2 and 3.")
    first = client.messages.create(
        model=MODEL, max_tokens=64, messages=asked, tools=[TOOL], tool_choice={"type": "any"}
    )
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.input == {"a": 2, "b": 3}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "The sum is five."}
    turns = [*asked, first.to_param(), {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=64, messages=turns, tools=[TOOL])
    assert second.content[0].type == "text"
    assert "The sum is five." in second.content[0].text


def test_count_equals_what_the_call_uses(account: Account) -> None:
    client = client_of(account)
    fields: dict[str, Any] = {"model": MODEL, "system": "Be brief.", "messages": user("SAY: x"), "tools": [TOOL]}
    counted = client.messages.count_tokens(**fields)
    used = client.messages.create(**fields, max_tokens=8).usage
    assert counted.input_tokens == used.input_tokens
    assert len(account.records()) == 1


def test_stop_sequence_is_named(account: Account) -> None:
    message = client_of(account).messages.create(
        model=MODEL, max_tokens=64, messages=user("SAY: one two three"), stop_sequences=["two"]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")


def test_errors_are_in_the_anthropic_envelope(account: Account) -> None:
    client = client_of(account)
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content") as refusal:
        client.messages.create(model=MODEL, max_tokens=8, messages=user(""))
    assert refusal.value.response.json()["request_id"] == refusal.value.response.headers["request-id"]
    with pytest.raises(anthropic.NotFoundError, match="no-such-model"):
        client.messages.create(model="no-such-model", max_tokens=8, messages=user("x"))
    with pytest.raises(anthropic.AuthenticationError):
        client_of(account, auth_token=None).with_options(api_key="nope").messages.create(
            model=MODEL, max_tokens=8, messages=user("x")
        )
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model=MODEL, max_tokens=8, messages=user("FAIL:503"))


def test_engine_that_dies_midway_is_an_error_event(account: Account) -> None:
    def attempt(pace: float) -> anthropic.APIStatusError | None:
        caller = make_account(account.web)
        prompt = user(f"PACE:{pace} FAIL:500@3")
        with pytest.raises(anthropic.APIStatusError) as failure:
            list(client_of(caller).messages.create(model=MODEL, max_tokens=64, messages=prompt, stream=True))
        assert caller.record().status == "failed"
        caller.assert_books_agree()
        # A status where the caller had got nothing yet.
        return failure.value if failure.value.status_code == 200 else None

    assert "api_error" in str(at_some_pace(attempt))


def test_what_a_coding_agent_sends_is_served(account: Account) -> None:
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Be careful."},
        {"role": "user", "content": "SAY: fine"},
    ]
    answer = account.http.post(
        "/v1/messages?beta=true",
        headers={"anthropic-beta": "a-1,b-2,c-3", "x-app": "cli"},
        json={
            "model": MODEL,
            "max_tokens": 64,
            "messages": turns,
            "system": [{"type": "text", "text": "x" * 60_000}],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": []},
            "output_config": {"effort": "medium"},
            "tools": [{**TOOL, "name": f"tool_{index}", "eager_input_streaming": True} for index in range(24)],
        },
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"][-1]["text"] == "fine"
    assert account.http.head("/").status_code == 200


def test_a_prompt_that_does_not_fit_is_refused_in_the_words_that_agents_act_on(account: Account) -> None:
    """Claude Code reads the numbers: it asks again for a shorter answer, or compacts the conversation."""
    client = client_of(account)
    words = r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)"
    with pytest.raises(anthropic.BadRequestError, match=words) as refusal:
        client.messages.create(model=MODEL, max_tokens=8190, messages=user("word " * 100))
    (numbers,) = re.findall(words, refusal.value.message)
    prompt_tokens, max_tokens, context_tokens = map(int, numbers)
    assert (prompt_tokens, context_tokens) == (103, 8192)
    # As many as the model may make, if that is less than was asked for.
    assert prompt_tokens + max_tokens > context_tokens
    room = context_tokens - prompt_tokens
    assert client.messages.create(model=MODEL, max_tokens=room, messages=user("word " * 100)).stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 9003 tokens > 8192 maximum"):
        client.messages.create(model=MODEL, max_tokens=10, messages=user("word " * 9000))
    account.assert_books_agree()


def test_the_same_prompt_costs_the_same_in_every_dialect(account: Account) -> None:
    prompt = "CACHED:2 SAY: a b c"
    account.client().chat.completions.create(**account.chat(prompt))
    account.client().responses.create(model=MODEL, input=prompt)
    client_of(account).messages.create(model=MODEL, max_tokens=64, messages=user(prompt))
    with client_of(account).messages.stream(model=MODEL, max_tokens=64, messages=user(prompt)) as stream:
        usage = stream.get_final_message().usage
    shapes = {(row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano) for row in account.records()}
    assert len(account.records()) == 4
    assert len(shapes) == 1
    ((prompt_tokens, cached_tokens, _, _),) = shapes
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (prompt_tokens - cached_tokens, cached_tokens)
    account.assert_books_agree()


def test_outsiders_key_costs_its_own_organization(account: Account) -> None:
    other = make_account(account.web)
    client_of(other).messages.create(model=MODEL, max_tokens=8, messages=user("SAY: x"))
    assert len(other.records()) == 1
    assert account.records() == []

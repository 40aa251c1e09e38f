"""The three protocols on the real model: tools that must be called, and schemas, enforced while it writes."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai

from tests.end_to_end.stack import MODEL, Stack

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
QUESTION = "What is the weather in Oslo?"


def assert_weather(value: Any) -> None:
    assert set(value) == {"city", "unit"}
    assert value["unit"] in ("C", "F")
    assert len(value["city"]) <= 12


def clients(stack: Stack) -> tuple[openai.OpenAI, anthropic.Anthropic]:
    client = stack.client()
    base_url = str(client.base_url).rstrip("/").removesuffix("/v1")
    return client, anthropic.Anthropic(base_url=base_url, api_key=client.api_key, max_retries=0)


def test_a_required_call_has_valid_arguments_in_each(real_stack: Stack) -> None:
    client, claude = clients(real_stack)
    function = {"name": "get_weather", "parameters": WEATHER, "strict": True}
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        temperature=0,
        max_tokens=80,
    )
    assert chat.choices[0].finish_reason == "tool_calls"
    (call,) = chat.choices[0].message.tool_calls or ()
    assert_weather(json.loads(call.function.arguments))

    response = client.responses.create(
        model=MODEL,
        input=QUESTION,
        tools=[{"type": "function", **function}],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
        max_output_tokens=80,
    )
    (item,) = response.output
    assert_weather(json.loads(item.arguments))

    with claude.messages.stream(
        model=MODEL,
        max_tokens=80,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[{"name": "get_weather", "input_schema": WEATHER, "strict": True}],
        tool_choice={"type": "any"},
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert_weather(message.content[-1].input)


def test_an_answer_is_held_to_its_schema_in_each(real_stack: Stack) -> None:
    client, claude = clients(real_stack)
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}},
        temperature=0,
        max_tokens=60,
    )
    assert_weather(json.loads(chat.choices[0].message.content or ""))
    response = client.responses.create(
        model=MODEL,
        input=QUESTION,
        text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}},
        temperature=0,
        max_output_tokens=60,
    )
    assert_weather(json.loads(response.output_text))
    message = claude.messages.create(
        model=MODEL,
        max_tokens=60,
        messages=[{"role": "user", "content": QUESTION}],
        output_config={"format": {"type": "json_schema", "schema": WEATHER}},
    )
    assert_weather(json.loads(message.content[0].text))

"""Chat Completions alone: what a body becomes, and what the official client reads of the answer."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.protocols import chat
from api.protocols.errors import BadRequest
from api.protocols.request import GenerationRequest
from inference_grpc.events import ChoiceFinished, Event, Finished, Started, TextDelta, Usage
from tests.api.protocols.scenarios import MODEL, SCENARIOS, frames_of, result_of, stream_of, write_all, writer_of
from tests.api.protocols.sdk import openai_reading, openai_stream

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "g"}}
every_scenario = pytest.mark.parametrize("name", SCENARIOS)


def request_of(**fields: Any) -> GenerationRequest:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **fields}
    return chat.parse(orjson.dumps(body)).requests[0]


def refusal_of(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as refusal:
        request_of(**fields)
    return refusal.value


def test_roles_and_parts_become_plain_messages() -> None:
    request = request_of(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ada"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
    )
    assert request.messages is not None
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "be brief"), ("user", "ab"), ("assistant", None), ("tool", "42"),
    ]  # fmt: skip
    assert request.messages[1].name == "Ada"
    assert request.messages[2].reasoning == "hm"
    assert request.messages[2].tool_calls[0].id == request.messages[3].tool_call_id == "c1"


def test_media_that_a_tool_returned_are_told_to_the_model() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before = [{"role": "user", "content": "look"}, {"role": "assistant", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Here: "}, picture]}
    messages = request_of(messages=[*before, result]).messages
    assert messages is not None
    assert messages[-1].content == "Here: [The tool returned an image, which you cannot see: you read text only.]"
    refusal = refusal_of(messages=[{"role": "user", "content": [picture]}])
    assert refusal.param == "messages[0].content[0]"


def test_nulls_are_defaults() -> None:
    names = ("temperature", "top_p", "n", "stop", "logit_bias", "tools", "tool_choice", "seed", "max_tokens", "stream")
    assert request_of(**dict.fromkeys(names)) == request_of()


def test_sampling_and_limits_are_taken_over() -> None:
    request = request_of(
        temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=-1, presence_penalty=-2, frequency_penalty=2,
        logit_bias={"5": -100}, stop="end", n=2, max_completion_tokens=9, max_tokens=9, logprobs=True, top_logprobs=3,
    )  # fmt: skip
    assert request.sampling.temperature == 0
    assert request.sampling.logit_bias == {5: -100}
    assert (request.stop, request.n, request.max_tokens, request.top_logprobs) == (["end"], 2, 9, 3)


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", []),
        ("none", "none", []),
        ("required", "required", []),
        ({"type": "function", "function": {"name": "g"}}, "named", ["g"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}, "allowed", ["f"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}, "required", ["f"]),
    ],
)
def test_tool_choices(choice: Any, mode: str, names: list[str]) -> None:
    request = request_of(tools=[TOOL, OTHER], tool_choice=choice, parallel_tool_calls=False)
    assert (request.tool_choice.mode, request.tool_choice.names) == (mode, names)
    assert not request.tool_choice.parallel
    assert [tool.name for tool in request.tools] == ["f", "g"]


def test_legacy_functions_are_tools_and_come_back_as_function_call() -> None:
    body = {
        "model": MODEL,
        "functions": [{"name": "f", "parameters": {"type": "object"}}],
        "function_call": {"name": "f"},
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "42"},
        ],
    }
    parsed = chat.parse(orjson.dumps(body))
    (request,) = parsed.requests
    assert request.tool_choice.mode == "named"
    assert request.messages is not None
    assert request.messages[1].tool_calls[0].id == request.messages[2].tool_call_id
    stream = b"".join(
        write_all(writer_of("chat", stream=True, extra={"functions": body["functions"]}), SCENARIOS["tools"].events)
    )
    chunks = [frame.data["choices"][0] for frame in frames_of(stream)[:-1]]
    parts = [chunk["delta"]["function_call"] for chunk in chunks if "function_call" in chunk["delta"]]
    assert parts[0]["name"] == "weather"
    assert json.loads("".join(part["arguments"] for part in parts)) == {"city": "Paris"}
    assert chunks[-1]["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}, "json_schema"),
    ],
)
def test_response_formats_become_constraints(wanted: Any, kind: str | None) -> None:
    constraint = request_of(response_format=wanted).constraint
    assert (constraint and constraint.kind) == kind


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "h"}}},
            "tool_choice.function.name",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"max_output_tokens": 9}, "max_output_tokens"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {"x": 1}}, "web_search_options"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"stop": [""]}, "stop[0]"),
        ({"seed": 2**63}, "seed"),
        ({"model": ""}, "model"),
    ],
)
def test_what_cannot_be_done_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal_of(**fields).param == param


@every_scenario
def test_the_official_client_reads_every_chunk(name: str) -> None:
    chunks = openai_stream("chat", stream_of("chat", SCENARIOS[name]), MODEL)
    assert chunks[-1].usage.total_tokens == 21
    assert chunks[-1].choices == []


@every_scenario
def test_the_official_client_reads_the_plain_answer_as_the_stream_said(name: str) -> None:
    scenario = SCENARIOS[name]
    body = orjson.dumps(result_of("chat", scenario))
    message = {"role": "user", "content": "x"}
    plain = openai_reading(body).chat.completions.create(model=MODEL, messages=[message])  # type: ignore[list-item]
    chunks = openai_stream("chat", stream_of("chat", scenario), MODEL)
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == (plain.choices[0].message.content or "")
    assert [choice.finish_reason for choice in deltas if choice.finish_reason] == [plain.choices[0].finish_reason]
    calls = plain.choices[0].message.tool_calls or []
    fragments: dict[int, str] = {}
    for choice in deltas:
        for call in choice.delta.tool_calls or ():
            fragments[call.index] = fragments.get(call.index, "") + (call.function.arguments or "")
    assert list(fragments.values()) == [call.function.arguments for call in calls]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))))
def test_any_interleaving_of_choices_is_assembled_by_index(pieces: list[tuple[int, str]]) -> None:
    events: list[Event] = [Started(3, 0)]
    events += [TextDelta(text, 1, choice) for choice, text in pieces]
    events += [*(ChoiceFinished("eos", None, choice) for choice in range(3)), Finished(Usage(3, 0, 1))]
    texts = ["", "", ""]
    for frame in frames_of(b"".join(write_all(writer_of("chat", stream=True, extra={"n": 3}), events)))[:-1]:
        for choice in frame.data["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == ["".join(text for choice, text in pieces if choice == index) for index in range(3)]

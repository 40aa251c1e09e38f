"""Messages: what a body becomes, and which refusals name what."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from api.protocols import messages
from api.protocols.errors import BadRequest
from api.protocols.request import Constraint, GenerationRequest, ToolChoice

TOOL: dict[str, Any] = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "Hi"}


def body(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "max_tokens": 16, "messages": [USER], **fields})


def request(**fields: Any) -> GenerationRequest:
    return messages.parse(body(**fields)).request


def roles(**fields: Any) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in request(**fields).messages or ()]


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_system_text_or_blocks_come_first() -> None:
    assert roles(system="Be brief.") == [("system", "Be brief."), ("user", "Hi")]
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert roles(system=blocks)[0] == ("system", "a\nb")


def test_system_turn_in_the_middle_is_accepted() -> None:
    turns = [USER, {"role": "system", "content": "Now be terse."}, {"role": "user", "content": "Go"}]
    assert [role for role, _ in roles(messages=turns)] == ["user", "system", "user"]


def test_consecutive_turns_of_one_role_are_one() -> None:
    assert roles(messages=[USER, {"role": "user", "content": "there"}]) == [("user", "Hi\nthere")]


def test_last_assistant_turn_is_continued() -> None:
    parsed = request(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert parsed.continue_final_message
    assert not request().continue_final_message


def test_tool_round_trip_keeps_calls_results_and_thinking() -> None:
    turns = [
        USER,
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "whatever"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
        ),
        user(
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
            {"type": "text", "text": "Thanks"},
        ),
    ]
    found = request(messages=turns, tools=[TOOL]).messages or []
    assert [message.role for message in found] == ["user", "assistant", "tool", "tool", "user"]
    call = found[1].tool_calls[0]
    assert (found[1].reasoning, found[1].content) == ("hm", "Looking.")
    assert (call.id, call.name, orjson.loads(call.arguments_json)) == ("toolu_1", "weather", {"city": "Paris"})
    assert (found[2].tool_call_id, found[2].name, found[2].content) == ("toolu_1", "weather", "sunny")
    assert found[3].content == "Error: no such city"


def test_text_document_is_read() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Once upon a time"}
    turn = user({"type": "document", "source": source, "title": "Tale"}, {"type": "text", "text": "Sum up"})
    assert roles(messages=[turn]) == [("user", "Tale\nOnce upon a time\nSum up")]


def test_tool_result_may_be_empty() -> None:
    turns = [
        USER,
        assistant({"type": "tool_use", "id": "t", "name": "weather", "input": {}}),
        user({"type": "tool_result", "tool_use_id": "t"}),
    ]
    assert roles(messages=turns, tools=[TOOL])[-1] == ("tool", "")


def test_media_that_a_tool_returned_are_told_to_the_model() -> None:
    """Claude Code's Read gives pictures and PDF files back as they are; refused, they would end its session."""
    blocks = [
        {"type": "text", "text": "pic.png:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        {"type": "tool_reference", "tool_name": "weather"},
    ]
    turns = [
        USER,
        assistant({"type": "tool_use", "id": "t", "name": "weather", "input": {}}),
        user({"type": "tool_result", "tool_use_id": "t", "content": blocks}),
    ]
    lines = (roles(messages=turns, tools=[TOOL])[-1][1] or "").split("\n")
    assert lines == [
        "pic.png:",
        "[The tool returned an image, which you cannot see: you read text only.]",
        "[The tool returned a document, which you cannot see: you read text only.]",
        "The tool 'weather' can be called.",
    ]


# What Claude Code 2.1 looks for in a 400, to take that kind of media out of the conversation and ask again.
CLIENTS_PATH = re.compile(
    r"messages[.[](\d+)[\].]+content[.[](\d+)[\].]+(?:tool_result[.[]content[.[]\d+[\].]+)?(image|document|pdf)"
)


@pytest.mark.parametrize("kind", ["image", "document"])
def test_media_are_refused_by_a_path_that_clients_find(kind: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        request(messages=[user({"type": "text", "text": "a"}, {"type": kind, "source": {"type": "base64"}})])
    found = CLIENTS_PATH.search(refusal.value.message)
    assert found is not None
    assert found.groups() == ("0", "1", kind)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto", parallel=False)),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "weather"}, ToolChoice("named", ["weather"])),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    assert request(tools=[TOOL], tool_choice=choice).tool_choice == expected


def test_server_tool_is_dropped_when_nothing_may_be_called() -> None:
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    assert request(tools=[server_tool, TOOL], tool_choice={"type": "none"}).tools[0].name == "weather"


@pytest.mark.parametrize(
    ("thinking", "is_on"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "between_tools"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, True),
    ],
)
def test_thinking_is_off_unless_asked_for(thinking: Any, is_on: bool) -> None:
    assert request(thinking=thinking, max_tokens=4096).template_options["enable_thinking"] is is_on


def test_output_format_constrains_the_text() -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    expected = Constraint("json_schema", '{"type":"object"}')
    assert request(output_config={"format": wanted, "effort": "low"}).constraint == expected
    assert request(output_format=wanted).constraint == expected


def test_what_a_coding_agent_sends_is_accepted() -> None:
    parsed = request(
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        metadata={"user_id": "u"},
        tools=[{**TOOL, "eager_input_streaming": True, "cache_control": {"type": "ephemeral"}}],
        stream=True,
        temperature=1,
        mcp_servers=[],
        some_new_field={"x": 1},
    )
    assert parsed.stream
    assert parsed.end_user == "u"
    assert parsed.template_options == {"enable_thinking": True, "reasoning_effort": "medium"}


def test_count_needs_no_max_tokens_and_gives_the_same_prompt() -> None:
    fields = {"model": "m", "messages": [USER], "system": "Be brief.", "tools": [TOOL]}
    counted = messages.parse_count(orjson.dumps(fields))
    real = request(system="Be brief.", tools=[TOOL])
    assert (counted.messages, counted.tools, counted.template_options) == (
        real.messages,
        real.tools,
        real.template_options,
    )
    assert messages.count_body(7) == b'{"input_tokens":7}'


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "integer"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "Hi"}, "messages", "an array"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'user', 'assistant', 'system'"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content", "empty"),
    ({"messages": [user({"type": "text", "text": ""})]}, "messages[0].content[0].text", "empty"),
    ({"messages": [user({"type": "text", "text": 5})]}, "messages[0].content[0].text", "a string"),
    ({"messages": [user({"type": "text", "text": "a"}, IMAGE)]}, "messages[0].content[1].image", "image"),
    ({"messages": [user({"type": "document", "source": {"type": "url"}})]}, "messages[0].content[0].document", "text"),
    ({"messages": [user({"type": "server_tool_use"})]}, "messages[0].content[0].type", "server_tool_use"),
    ({"messages": [user({"type": "tool_result", "content": "x"})]}, "messages[0].content[0].tool_use_id", "Missing"),
    (
        {"messages": [USER, assistant({"type": "tool_use", "id": "t", "name": "weather", "input": {}})]},
        "messages[1]",
        "tool_result",
    ),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name", "letters"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema", "Missing"),
    ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "tools[0].input_schema.type", "object"),
    ({"tools": [TOOL, TOOL]}, "tools", "weather"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "bash_20250124"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "'x'"),
    ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type", "'any'"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "tools"),
    ({"temperature": 1.5}, "temperature", "at most 1"),
    ({"top_k": -1}, "top_k", "at least 0"),
    ({"stop_sequences": ["a", " "]}, "stop_sequences[1]", "white space"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "Missing"),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens", "1024"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens", "max_tokens"),
    ({"thinking": {"type": "much"}}, "thinking.type", "adaptive"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort", "'low'"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "Missing"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not supported"),
    ({"container": "c"}, "container", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "says"), REFUSALS, ids=[param for _, param, _ in REFUSALS])
def test_refusal_names_the_field_and_the_remedy(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        messages.parse(body(**fields))
    assert refusal.value.param == param
    assert says in refusal.value.message

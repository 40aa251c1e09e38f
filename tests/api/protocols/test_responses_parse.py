"""Responses: what a body becomes, how earlier items are added, and which refusals name what."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from api.protocols import responses
from api.protocols.errors import BadRequest
from api.protocols.request import Constraint, GenerationRequest, ToolChoice
from api.protocols.responses.items import SEALED_REASONING, SEALED_SUMMARY
from api.protocols.sealing import seal

TOOL: dict[str, Any] = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Paris"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


def parsed(**fields: Any) -> responses.Parsed:
    return responses.parse(orjson.dumps({"model": "m", "input": "Hi", **fields}))


def request(**fields: Any) -> GenerationRequest:
    return parsed(**fields).request


def conversation(*items: dict[str, Any], **fields: Any) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in request(input=list(items), **fields).messages or ()]


def test_input_may_be_a_string_or_items_without_type_id_or_status() -> None:
    assert conversation({"role": "user", "content": "Hi"}) == [("user", "Hi")]
    assert [message.content for message in request().messages or ()] == ["Hi"]
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert conversation({"type": "message", "role": "user", "content": parts}) == [("user", "ab")]


def test_instructions_and_developer_messages_are_system_messages() -> None:
    found = conversation({"role": "developer", "content": "b"}, {"role": "user", "content": "c"}, instructions="a")
    assert found == [("system", "a"), ("system", "b"), ("user", "c")]


def test_assistant_phases_are_separate_turns() -> None:
    items = [
        {"role": "assistant", "phase": "commentary", "content": "Looking."},
        {"role": "assistant", "phase": "final_answer", "content": "Four."},
        {"role": "user", "content": "Again"},
    ]
    assert conversation(*items) == [("assistant", "Looking."), ("assistant", "Four."), ("user", "Again")]


def test_calls_made_together_are_one_assistant_turn_with_its_reasoning() -> None:
    second = {**CALL, "call_id": "call_2"}
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "content": None, "summary": [], "encrypted_content": seal("hm", SEALED_REASONING)},
        CALL,
        second,
        OUTPUT,
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "rain"}]},
    ]
    found = request(input=items, tools=[TOOL]).messages or []
    assert [message.role for message in found] == ["user", "assistant", "tool", "tool"]
    assert [call.id for call in found[1].tool_calls] == ["call_1", "call_2"]
    assert found[1].reasoning == "hm"
    assert (found[3].content, found[3].tool_call_id, found[3].name) == ("rain", "call_2", "weather")


def test_media_that_a_tool_returned_are_told_to_the_model() -> None:
    """Codex's view_image answers so."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    *_, last = conversation(
        {"role": "user", "content": "Look"},
        CALL,
        {**OUTPUT, "output": [{"type": "input_text", "text": "Here: "}, image]},
    )
    assert last == ("tool", "Here: [The tool returned an image, which you cannot see: you read text only.]")


def test_reasoning_sealed_by_another_service_is_dropped() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABforeign"}
    assert conversation({"role": "user", "content": "a"}, item, {"role": "assistant", "content": "b"})[-1] == (
        "assistant",
        "b",
    )


def test_compacted_conversation_is_read_back() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": seal("They like tea.", SEALED_SUMMARY)}
    assert conversation(item, {"role": "user", "content": "Go on"})[0] == (
        "user",
        "Summary of the conversation so far:\nThey like tea.",
    )


def test_namespaced_tools_are_flattened_and_found_again() -> None:
    space = {"type": "namespace", "name": "mcp__files__", "description": "", "tools": [{**TOOL, "name": "read"}]}
    call = {**CALL, "name": "read", "namespace": "mcp__files__"}
    found = request(input=[{"role": "user", "content": "x"}, call, OUTPUT], tools=[space, {**TOOL, "name": "read"}])
    assert [tool.name for tool in found.tools] == ["mcp__files__read", "read"]
    assert (found.messages or [])[1].tool_calls[0].name == "mcp__files__read"


def test_hosted_tools_are_ignored_while_the_model_may_choose() -> None:
    found = parsed(tools=[{"type": "web_search", "external_web_access": True}, TOOL])
    assert [tool.name for tool in found.request.tools] == ["weather"]
    assert [tool["type"] for tool in found.echo["tools"]] == ["web_search", "function"]


def test_custom_tool_takes_free_text() -> None:
    tool = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
    }
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    found = request(input=[{"role": "user", "content": "x"}, call, output], tools=[tool])
    assert "start: X" in found.tools[0].description
    assert (found.messages or [])[1].tool_calls[0].arguments_json == '{"input":"*** Begin"}'


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "weather"}, ToolChoice("named", ["weather"])),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice("allowed", ["weather"]),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice("required", ["weather"]),
        ),
    ],
)
def test_tool_choice(choice: Any, expected: ToolChoice) -> None:
    assert request(tools=[TOOL], tool_choice=choice).tool_choice == expected


def test_text_format_is_flat() -> None:
    wanted = {"type": "json_schema", "name": "answer", "strict": True, "schema": {"type": "object"}}
    found = parsed(text={"format": wanted, "verbosity": "low"})
    assert found.request.constraint == Constraint("json_schema", '{"type":"object"}')
    assert found.echo["text"]["format"] == {**wanted, "description": None}
    assert request(text={"format": {"type": "json_object"}}).constraint == Constraint("json_object")


def test_reasoning_effort_reaches_the_template() -> None:
    assert request(reasoning={"effort": "none"}).template_options == {"enable_thinking": False}
    assert request(reasoning={"effort": "low"}).template_options["reasoning_effort"] == "low"
    assert request().template_options == {}


def test_logprobs_are_asked_for_by_include_or_by_number() -> None:
    assert request(include=["message.output_text.logprobs"]).logprobs
    assert request(top_logprobs=3).top_logprobs == 3
    assert not request().logprobs


def test_what_a_coding_agent_sends_is_accepted() -> None:
    found = parsed(
        input=[{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]}],
        tools=[{"type": "web_search"}, TOOL, {"type": "namespace", "name": "ns", "tools": []}],
        tool_choice="auto",
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        client_metadata={"a": "b"},
        prompt_cache_key="k",
        reasoning={"effort": "medium", "summary": "auto"},
        text={"verbosity": "medium"},
        stop=["ignored here"],
    )
    assert found.seals_reasoning
    assert not found.is_stored


def test_every_field_of_the_response_object_is_echoed() -> None:
    echo = parsed(metadata={"a": "b"}, temperature=0.5, truncation="auto", safety_identifier="s").echo
    assert (echo["metadata"], echo["temperature"], echo["truncation"], echo["store"]) == ({"a": "b"}, 0.5, "auto", True)
    assert echo["previous_response_id"] is None


# Earlier responses -----------------------------------------------------------------------------------------------


def test_earlier_turns_stand_between_instructions_and_input() -> None:
    found = parsed(previous_response_id="resp_1", instructions="Be brief.", input=[OUTPUT])
    assert found.needs_history
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}, CALL]
    responses.expand(found, history=history, referenced={})
    assert [(message.role, message.content) for message in found.request.messages or ()] == [
        ("system", "Be brief."),
        ("user", "Weather?"),
        ("assistant", None),
        ("tool", "sunny"),
    ]


def test_output_without_its_call_is_refused_also_after_history() -> None:
    found = parsed(previous_response_id="resp_1", input=[OUTPUT])
    with pytest.raises(BadRequest, match="No tool call found"):
        responses.expand(found, history=[{"role": "user", "content": "x"}], referenced={})


def test_referenced_items_are_put_in_place() -> None:
    found = parsed(input=[{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "b"}])
    assert found.referenced_ids == ["msg_1"]
    responses.expand(found, history=[], referenced={"msg_1": {"type": "message", "role": "user", "content": "a"}})
    assert [message.content for message in found.request.messages or ()] == ["a", "b"]
    assert found.items[0]["content"] == "a"


def test_missing_reference_is_named() -> None:
    found = parsed(input=[{"id": "msg_9"}])
    with pytest.raises(BadRequest) as refusal:
        responses.expand(found, history=[], referenced={})
    assert refusal.value.param == "input[0].id"


def test_kept_items_have_ids_types_and_parts() -> None:
    kept = responses.kept_items(
        [{"role": "user", "content": "Hi"}, CALL, {**OUTPUT, "id": "fco_mine"}, {"role": "assistant", "content": "x"}],
        "abc",
    )
    assert [item["id"] for item in kept] == ["msg_abci00", "fc_abci01", "fco_mine", "msg_abci03"]
    assert kept[0] == {
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
        "type": "message",
        "id": "msg_abci00",
        "status": "completed",
    }
    assert kept[3]["content"][0]["annotations"] == []


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "string"),
    ({"input": None}, "input", "Missing"),
    ({"input": []}, "input", "at least one"),
    ({"input": [{"content": "x"}]}, "input[0].type", "Missing"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'developer'"),
    ({"input": [{"role": "user"}]}, "input[0].content", "Missing"),
    ({"input": [{"role": "user", "content": "x", "id": "m" * 201}]}, "input[0].id", "200"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "image"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]", "audio"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]", "file"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "an array"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "computer_call"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].encrypted_content", "not made by"),
    ({"input": [OUTPUT]}, "input[0].call_id", "call_1"),
    ({"include": ["everything"]}, "include[0]", "reasoning.encrypted_content"),
    ({"tools": [{"type": "teleport"}]}, "tools[0].type", "teleport"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "Missing"),
    ({"tools": [{"name": "x"}]}, "tools[0].type", "Missing"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name", "weather"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "web_search"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no function"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "'x'"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "'required'"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "Missing"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "Missing"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_object"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "'low'"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "'none'"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", "'auto'"),
    ({"max_tokens": 9}, "max_tokens", "'max_output_tokens'"),
    ({"max_completion_tokens": 9}, "max_completion_tokens", "'max_output_tokens'"),
    ({"response_format": {"type": "json_object"}}, "response_format", "'text.format'"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "'reasoning.effort'"),
    ({"temperature": 2.1}, "temperature", "at most 2"),
    ({"top_logprobs": 21}, "top_logprobs", "at most 20"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"truncation": "middle"}, "truncation", "'disabled'"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "512"),
    ({"metadata": {"k" * 65: "v"}}, "metadata", "64"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "16"),
    ({"background": True}, "background", "stream"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
]


@pytest.mark.parametrize(("fields", "param", "says"), REFUSALS, ids=[param for _, param, _ in REFUSALS])
def test_refusal_names_the_field_and_the_remedy(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parsed(**fields)
    assert refusal.value.param == param
    assert says in refusal.value.message

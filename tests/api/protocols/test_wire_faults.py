"""Faults that users of other gateways met in what a translator sends or accepts, each named after its symptom."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import orjson
import pytest

from api.protocols import chat, messages, responses
from api.protocols.errors import BadRequest
from api.protocols.responses import compact
from api.protocols.responses.replay import replay
from inference_grpc.events import (
    ChoiceFinished,
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from tests.api.protocols.scenarios import (
    CREATED,
    MODEL,
    REQUEST_ID,
    SCENARIOS,
    TOOLS,
    Frame,
    frames_of,
    result_of,
    stream_of,
    write_all,
    writer_of,
)
from tests.api.protocols.sdk import anthropic_reading, openai_reading

CHAT_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS: list[Any] = [
    ToolCallStart(0, "call_a", "weather", 1),
    ToolCallArguments('{"city":', 2),
    ToolCallArguments('"Paris"}', 3),
    ToolCallStart(1, "call_b", "weather", 4),
    ToolCallArguments("{}", 5),
]


def chat_frames(deltas: list[Any], reason: Any = "tool_calls", **fields: Any) -> list[Frame]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
    parsed = chat.parse(orjson.dumps(body))
    writer = chat.make_writer(parsed, request_id=REQUEST_ID, model=MODEL, created=CREATED)
    events: list[Event] = [Started(3, 0), *deltas, ChoiceFinished(reason), Finished(Usage(3, 0, 5))]
    return frames_of(b"".join(write_all(writer, events)))


def deltas_of(frames: list[Frame]) -> list[dict[str, Any]]:
    return [frame.data["choices"][0]["delta"] for frame in frames if frame.data != "[DONE]" and frame.data["choices"]]


def calls_of(frames: list[Frame]) -> list[dict[str, Any]]:
    return [call for delta in deltas_of(frames) for call in delta.get("tool_calls") or ()]


# Chat ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}])
def test_streamed_tool_call_has_id_type_and_name_in_its_first_chunk_only(choice: Any) -> None:
    calls = calls_of(chat_frames(CALLS, tools=[CHAT_TOOL], tool_choice=choice))
    first = [call for call in calls if "id" in call]
    assert [call["id"] for call in first] == ["call_a", "call_b"]
    assert all(call["type"] == "function" and call["function"]["name"] == "weather" for call in first)
    assert all(call["function"]["arguments"] == "" for call in first)
    assert all("name" not in call["function"] for call in calls if "id" not in call)


def test_tool_call_fragments_carry_their_index_and_join_to_json() -> None:
    joined = {0: "", 1: ""}
    for call in calls_of(chat_frames(CALLS, tools=[CHAT_TOOL])):
        assert isinstance(call["function"]["arguments"], str)
        joined[call["index"]] += call["function"]["arguments"]
    assert [orjson.loads(text) for text in joined.values()] == [{"city": "Paris"}, {}]


@pytest.mark.parametrize("reason", ["eos", "tool_calls", "stop_string"])
def test_stream_with_a_call_does_not_finish_with_stop(reason: str) -> None:
    frames = chat_frames(CALLS, reason, tools=[CHAT_TOOL])
    reasons = [frame.data["choices"][0]["finish_reason"] for frame in frames[:-1]]
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}


def test_one_id_names_the_whole_stream() -> None:
    assert len({frame.data["id"] for frame in chat_frames(CALLS, tools=[CHAT_TOOL])[:-1]}) == 1


def test_no_usage_chunk_unasked_and_empty_choices_when_asked() -> None:
    assert all(frame.data["choices"] for frame in chat_frames([TextDelta("a", 1)], "eos")[:-1])
    asked = chat_frames([TextDelta("a", 1)], "eos", stream_options={"include_usage": True})
    assert asked[-2].data["choices"] == []
    assert asked[-2].data["usage"]["total_tokens"] == 8
    assert all(frame.data["usage"] is None for frame in asked[:-2])


def test_legacy_usage_chunk_is_parseable() -> None:
    last = frames_of(stream_of("completions", SCENARIOS["text"]))[-2]
    assert (last.data["choices"], last.data["usage"]["total_tokens"]) == ([], 21)


def test_thinking_stream_starts_with_the_role_and_keeps_reasoning_apart() -> None:
    deltas = deltas_of(chat_frames([ReasoningDelta("hm", 1), TextDelta("Four", 2)], "eos"))
    assert deltas[0]["role"] == "assistant"
    assert [delta.get("reasoning_content") for delta in deltas if delta.get("reasoning_content")] == ["hm"]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Four"


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_stream_ends_with_done(dialect: str) -> None:
    frames = (
        chat_frames([TextDelta("a", 1)], "eos")
        if dialect == "chat"
        else frames_of(stream_of("completions", SCENARIOS["text"]))
    )
    assert frames[-1].data == "[DONE]"


def test_logprobs_with_tools_and_stream_are_accepted() -> None:
    assert chat_frames(CALLS, tools=[CHAT_TOOL], logprobs=True, top_logprobs=2)


def test_zero_choices_are_refused_before_a_stream_begins() -> None:
    with pytest.raises(BadRequest) as refusal:
        chat_frames([], n=0)
    assert refusal.value.param == "n"


# Messages --------------------------------------------------------------------------------------------------------


def test_message_start_has_the_real_input_count() -> None:
    frames = frames_of(stream_of("messages", SCENARIOS["text"]))
    usage = frames[0].data["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (8, 4)


@pytest.mark.parametrize("where", ["message_start", "message_delta", "plain"])
def test_input_tokens_do_not_contain_the_cached_ones(where: str) -> None:
    frames = frames_of(stream_of("messages", SCENARIOS["text"]))
    usage = {
        "message_start": frames[0].data["message"]["usage"],
        "message_delta": frames[-2].data["usage"],
        "plain": result_of("messages", SCENARIOS["text"])["usage"],
    }[where]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[part] for part in parts) == 12


def test_responses_count_the_cached_inside_the_input() -> None:
    usage = result_of("responses", SCENARIOS["text"])["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (12, 4)


def test_thinking_block_is_signed_once_before_it_stops() -> None:
    frames = frames_of(stream_of("messages", SCENARIOS["thinking"]))
    kinds = [(frame.event, frame.data.get("delta", {}).get("type")) for frame in frames if frame.data.get("index") == 0]
    assert [kind for _, kind in kinds].count("signature_delta") == 1
    assert kinds[-2:] == [("content_block_delta", "signature_delta"), ("content_block_stop", None)]
    assert result_of("messages", SCENARIOS["thinking"])["content"][0]["signature"]


def test_omitted_thinking_is_signed_but_not_shown() -> None:
    extra = {"thinking": {"type": "adaptive", "display": "omitted"}}
    events = SCENARIOS["thinking"].events
    stream = b"".join(write_all(writer_of("messages", stream=True, extra=extra), events))
    assert b"Let me" not in stream
    assert b"signature_delta" in stream


def test_stop_sequence_key_is_always_there() -> None:
    for scenario, expected in (("text", None), ("stop", "4")):
        assert result_of("messages", SCENARIOS[scenario])["stop_sequence"] == expected
        frames = frames_of(stream_of("messages", SCENARIOS[scenario]))
        assert frames[0].data["message"]["stop_sequence"] is None
        assert frames[-2].data["delta"]["stop_sequence"] == expected


def test_every_messages_frame_has_an_event_line() -> None:
    assert all(frame.event == frame.data["type"] for frame in frames_of(stream_of("messages", SCENARIOS["tools"])))


def test_tool_input_is_an_object_even_when_the_answer_was_cut() -> None:
    events: list[Event] = [
        Started(3, 0),
        ToolCallStart(0, "call_a", "weather", 1),
        ToolCallArguments('{"city": "Par', 2),
        ChoiceFinished("length"),
        Finished(Usage(3, 0, 2)),
    ]
    writer = writer_of("messages", stream=False, extra=TOOLS["messages"])
    write_all(writer, events)
    answer = orjson.loads(writer.result())
    assert answer["content"][0]["input"] == {"city": "Par"}
    assert answer["stop_reason"] == "max_tokens"


def test_broken_tool_input_becomes_text() -> None:
    events: list[Event] = [
        Started(3, 0),
        ToolCallStart(0, "call_a", "weather", 1),
        ToolCallArguments("not json", 2),
        ChoiceFinished("tool_calls"),
        Finished(Usage(3, 0, 2)),
    ]
    writer = writer_of("messages", stream=False, extra=TOOLS["messages"])
    write_all(writer, events)
    answer = orjson.loads(writer.result())
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": "not json"}], "end_turn")


def test_validation_error_is_in_the_anthropic_envelope() -> None:
    body = messages.error_body(
        status=400,
        type="invalid_request_error",
        code="invalid_type",
        message="'a' is wrong.",
        param="a",
        request_id="r",
    )
    assert orjson.loads(body) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "'a' is wrong."},
        "request_id": "r",
    }


def test_role_system_inside_messages_is_accepted() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    assert messages.parse(orjson.dumps({"model": "m", "max_tokens": 1, "messages": turns})).request.messages


def test_tool_ids_are_unique_and_not_empty() -> None:
    content = result_of("messages", SCENARIOS["tools"])["content"]
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    assert all(ids)


# Responses -------------------------------------------------------------------------------------------------------


def test_type_is_inside_the_data_and_the_response_is_nested() -> None:
    frames = frames_of(stream_of("responses", SCENARIOS["tools"]))
    assert all(frame.data["type"] == frame.event for frame in frames)
    assert [frame.event for frame in frames if "response" in frame.data] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]


def test_completed_has_id_and_output_and_items_have_their_whole_life() -> None:
    frames = frames_of(stream_of("responses", SCENARIOS["tools"]))
    alive: dict[str, int] = {}
    done = []
    for frame in frames:
        if frame.event == "response.output_item.added":
            assert frame.data["item"].get("status") != "completed"
            alive[frame.data["item"]["id"]] = frame.data["output_index"]
        elif frame.event == "response.output_item.done":
            assert alive.pop(frame.data["item"]["id"]) == frame.data["output_index"]
            done.append(frame.data["item"])
        elif "item_id" in frame.data:
            assert frame.data["item_id"] in alive
    final = frames[-1].data["response"]
    assert not alive
    assert (final["id"], final["output"]) == (f"resp_{REQUEST_ID.hex}", done)


def test_call_id_is_another_than_the_items_id() -> None:
    for item in result_of("responses", SCENARIOS["tools"])["output"][1:]:
        assert item["id"].startswith("fc_")
        assert item["call_id"].startswith("call_")


def test_replayed_assistant_items_without_id_and_status_are_accepted() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    found = responses.parse(orjson.dumps({"model": "m", "input": items})).request.messages or []
    assert [message.role for message in found] == ["user", "assistant", "tool"]
    assert (found[1].reasoning, found[1].content, found[1].tool_calls[0].name) == ("hm", "b", "weather")


def test_kept_turns_replay_calls_and_outputs() -> None:
    first = result_of("responses", SCENARIOS["tools"])["output"]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
        for item in first
        if item["type"] == "function_call"
    ]
    second = responses.parse(orjson.dumps({"model": "m", "input": outputs, "previous_response_id": "resp_1"}))
    responses.expand(second, history=[{"role": "user", "content": "Weather?"}, *first], referenced={})
    found = second.request.messages or []
    assert [message.role for message in found] == ["user", "assistant", "tool", "tool"]
    assert [call.id for call in found[1].tool_calls] == ["call_a1", "call_b2"]


def test_failure_closes_the_stream_with_a_failed_response() -> None:
    writer = writer_of("responses", stream=True)
    write_all(writer, SCENARIOS["text"].events[:2])
    frames = frames_of(writer.fail("engine_unavailable", "gone"))
    assert frames[-1].event == "response.failed"
    assert frames[-1].data["response"]["error"] == {"code": "server_error", "message": "gone"}


def test_limit_and_filter_make_the_response_incomplete() -> None:
    for scenario, reason in (("length", "max_output_tokens"), ("filtered", "content_filter")):
        last = frames_of(stream_of("responses", SCENARIOS[scenario]))[-1]
        assert last.event == "response.incomplete"
        assert last.data["response"]["incomplete_details"] == {"reason": reason}


def test_nullable_fields_are_there_in_full() -> None:
    required = {
        "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
        "previous_response_id", "instructions", "output", "error", "tools", "tool_choice", "truncation",
        "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs",
        "temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background",
        "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
    }  # fmt: skip
    for frame in frames_of(stream_of("responses", SCENARIOS["text"])):
        if "response" in frame.data:
            assert required <= frame.data["response"].keys()


def test_function_tools_are_echoed_with_all_their_keys() -> None:
    tool = {"type": "function", "name": "weather"}
    parsed = responses.parse(orjson.dumps({"model": "m", "input": "x", "tools": [tool]}))
    assert parsed.echo["tools"] == [{**tool, "description": None, "parameters": None, "strict": False}]


def test_custom_and_namespaced_calls_come_back_as_the_client_knows_them() -> None:
    tools = [
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "ns", "description": "", "tools": [{"type": "function", "name": "read"}]},
    ]
    events: list[Event] = [
        Started(3, 0),
        ToolCallStart(0, "call_a", "patch", 1),
        ToolCallArguments('{"input":"*** Be', 2),
        ToolCallArguments('gin\\n"}', 3),
        ToolCallStart(1, "call_b", "ns__read", 4),
        ToolCallArguments("{}", 5),
        ChoiceFinished("tool_calls"),
        Finished(Usage(3, 0, 5)),
    ]
    stream = b"".join(write_all(writer_of("responses", stream=True, extra={"tools": tools}), events))
    custom, function = frames_of(stream)[-1].data["response"]["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", "*** Begin\n")
    assert (function["type"], function["namespace"], function["name"]) == ("function_call", "ns", "read")
    assert list(openai_reading(stream).responses.create(model=MODEL, input="x", stream=True))


def test_requested_summary_carries_the_reasoning() -> None:
    events = SCENARIOS["thinking"].events
    stream = b"".join(write_all(writer_of("responses", stream=True, extra={"reasoning": {"summary": "auto"}}), events))
    kinds = [frame.event for frame in frames_of(stream)]
    assert kinds.count("response.reasoning_summary_text.delta") == 2
    assert "response.reasoning_text.delta" not in kinds
    assert list(openai_reading(stream).responses.create(model=MODEL, input="x", stream=True))


def test_compaction_round_trip() -> None:
    parsed = compact.parse(orjson.dumps({"model": MODEL, "input": "I like tea."}))
    assert [message.content for message in parsed.request.messages or ()] == ["I like tea.", compact.INSTRUCTION]
    writer = compact.make_writer(parsed, request_id=REQUEST_ID, model=MODEL, created=CREATED)
    write_all(writer, [Started(3, 0), TextDelta("They like tea.", 2), ChoiceFinished("eos"), Finished(Usage(3, 0, 2))])
    body = writer.result()
    answer = openai_reading(body).responses.compact(model=MODEL)
    assert answer.usage.total_tokens == 5
    replayed = responses.parse(orjson.dumps({"model": MODEL, "input": [*orjson.loads(body)["output"]]}))
    assert "They like tea." in str((replayed.request.messages or [])[0].content)


# All -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [chat, messages, responses])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_malformed_body_is_a_clean_refusal(dialect: ModuleType, body: bytes) -> None:
    with pytest.raises(BadRequest):
        dialect.parse(body)


def test_error_bodies_raise_the_official_clients_errors_with_the_message() -> None:
    openai_body = responses.error_body(
        status=400,
        type="invalid_request_error",
        code="invalid_type",
        message="'a' is wrong.",
        param="a",
        request_id="r",
    )
    with pytest.raises(Exception, match="'a' is wrong") as refusal:
        openai_reading(openai_body, 400).responses.create(model=MODEL, input="x")
    assert (refusal.value.param, refusal.value.code) == ("a", "invalid_type")  # type: ignore[attr-defined]
    anthropic_body = messages.error_body(
        status=529, type="overloaded_error", code=None, message="Busy.", param=None, request_id="r"
    )
    with pytest.raises(Exception, match="Busy"):
        anthropic_reading(anthropic_body, 529).messages.count_tokens(model=MODEL, messages=[])


def test_mid_stream_error_reaches_the_anthropic_client() -> None:
    writer = writer_of("messages", stream=True)
    stream = b"".join(write_all(writer, SCENARIOS["text"].events[:2])) + writer.fail("engine_overloaded", "Busy.")
    events = anthropic_reading(stream).messages.create(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(Exception, match="overloaded_error"):
        list(events)


@pytest.mark.parametrize("name", ["messages", "completions", "responses"])
def test_keepalive_is_a_whole_frame_that_clients_skip(name: str) -> None:
    assert writer_of(name, stream=True).keepalive().endswith(b"\n\n")


def test_big_tool_lists_stay_in_one_frame() -> None:
    tools = [
        {"type": "function", "name": f"tool_{index}", "description": "d" * 800, "parameters": {"type": "object"}}
        for index in range(24)
    ]
    last = write_all(writer_of("responses", stream=True, extra={"tools": tools}), SCENARIOS["text"].events)[-1]
    assert len(last) > 19_000
    assert frames_of(last)[-1].event == "response.completed"


@pytest.mark.parametrize("name", ["text", "thinking", "tools", "length"])
def test_kept_response_is_told_again_with_the_same_items(name: str) -> None:
    kept = result_of("responses", SCENARIOS[name])
    for item in kept["output"]:
        item.pop("encrypted_content", None)
    stream = b"".join(replay(kept))
    events = list(openai_reading(stream).responses.create(model=MODEL, input="x", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [frame.data["item"] for frame in frames_of(stream) if frame.event == "response.output_item.done"]
    assert done == kept["output"]
    assert frames_of(stream)[-1].data["response"] == kept

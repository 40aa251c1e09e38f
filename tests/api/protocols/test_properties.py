"""However an engine cuts its output into events, the same message is assembled, streamed or not."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from api.protocols.responses.items import SEALED_REASONING
from api.protocols.sealing import unseal
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
from tests.api.protocols.scenarios import TOOLS, frames_of, write_all, writer_of

# No lone surrogates: an engine's text is UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
values = st.integers(-(2**53), 2**53) | texts | st.none()
arguments = st.dictionaries(texts, values, max_size=3).map(lambda value: orjson.dumps(value).decode())
pieces = st.lists(
    st.tuples(st.just("text"), texts) | st.tuples(st.just("reasoning"), texts) | st.tuples(st.just("tool"), arguments),
    max_size=6,
)


def merged(given_pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one kind are one block, but each call is its own."""
    out: list[tuple[str, str]] = []
    for kind, text in given_pieces:
        if out and out[-1][0] == kind != "tool":
            out[-1] = (kind, out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


@st.composite
def split_events(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[Event]]:
    blocks = merged(draw(pieces))
    events: list[Event] = [Started(7, 2)]
    calls = 0
    for kind, text in blocks:
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        if kind == "tool":
            events.append(ToolCallStart(calls, f"call_{calls}", "weather", 1))
            events += [ToolCallArguments(part, 1) for part in parts]
            calls += 1
        else:
            events += [(TextDelta if kind == "text" else ReasoningDelta)(part, 1) for part in parts]
    events += [ChoiceFinished("tool_calls" if calls else "eos"), Finished(Usage(7, 2, 5, 1))]
    return blocks, events


@settings(max_examples=150, deadline=None)
@given(split_events())
def test_messages_stream_assembles_to_the_blocks(case: tuple[list[tuple[str, str]], list[Event]]) -> None:
    blocks, events = case
    stream = b"".join(write_all(writer_of("messages", stream=True, extra=TOOLS["messages"]), events))
    assembled: list[tuple[str, str]] = []
    for frame in frames_of(stream):
        data: Any = frame.data
        if frame.event == "content_block_start":
            assert data["index"] == len(assembled)
            assembled.append((data["content_block"]["type"], ""))
        elif frame.event == "content_block_delta" and data["delta"]["type"] != "signature_delta":
            kind, text = assembled[-1]
            delta = data["delta"]
            assembled[-1] = (
                kind,
                text + (delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""),
            )
    names = {"text": "text", "reasoning": "thinking", "tool": "tool_use"}
    assert assembled == [(names[kind], text) for kind, text in blocks]

    plain = writer_of("messages", stream=False, extra=TOOLS["messages"])
    write_all(plain, events)
    content = orjson.loads(plain.result())["content"]
    bodies = {"text": "text", "reasoning": "thinking", "tool": "input"}
    assert [block[bodies[kind]] for block, (kind, _) in zip(content, blocks, strict=True)] == [
        orjson.loads(text) if kind == "tool" else text for kind, text in blocks
    ]


@settings(max_examples=150, deadline=None)
@given(split_events())
def test_responses_stream_assembles_to_the_output_of_its_last_event(
    case: tuple[list[tuple[str, str]], list[Event]],
) -> None:
    blocks, events = case
    extra = {**TOOLS["responses"], "include": ["reasoning.encrypted_content"]}
    frames = frames_of(b"".join(write_all(writer_of("responses", stream=True, extra=extra), events)))
    assert [frame.data["sequence_number"] for frame in frames] == list(range(len(frames)))
    assembled: list[str] = []
    for frame in frames:
        assert frame.event == frame.data["type"]
        if frame.event == "response.output_item.added":
            assert frame.data["output_index"] == len(assembled)
            assembled.append("")
        elif frame.event and frame.event.endswith(".delta"):
            assert frame.data["output_index"] == len(assembled) - 1
            assembled[-1] += frame.data["delta"]
    assert assembled == [text for _, text in blocks] or not blocks

    output = frames[-1].data["response"]["output"]
    done = [frame.data["item"] for frame in frames if frame.event == "response.output_item.done"]
    assert output == done
    for (kind, text), item in zip(blocks, output, strict=bool(blocks)):
        if kind == "tool":
            assert item["arguments"] == text
        else:
            assert item["content"][0]["text"] == text
        if kind == "reasoning":
            assert unseal(item["encrypted_content"], SEALED_REASONING) == text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), texts), max_size=12))
def test_completion_chunks_join_to_each_choice(parts: list[tuple[int, str]]) -> None:
    writer = writer_of("completions", stream=True, extra={"n": 2})
    events: list[Event] = [Started(3, 0), *(TextDelta(text, 1, choice=choice) for choice, text in parts)]
    events += [ChoiceFinished("eos", choice=0), ChoiceFinished("length", choice=1), Finished(Usage(3, 0, 4))]
    frames = frames_of(b"".join(write_all(writer, events)))
    assert frames[-1].data == "[DONE]"
    joined, reasons = ["", ""], ["", ""]
    for frame in frames[:-1]:
        (choice,) = frame.data["choices"]
        joined[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert joined == ["".join(text for index, text in parts if index == wanted) for wanted in (0, 1)]
    assert reasons == ["stop", "length"]

"""Event sequences that every writer must tell in its own grammar, and the calls that they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from uuid import UUID

import orjson

from api.protocols import chat, completions, messages, responses
from api.protocols.dialect import Writer
from inference_grpc.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    TopLogprob,
    Usage,
)

REQUEST_ID = UUID("00000000-0000-4000-8000-0000000000aa")
MODEL = "smollm2-135m-instruct"
CREATED = 1_790_000_000
USAGE = Usage(prompt_tokens=12, cached_tokens=4, completion_tokens=9, reasoning_tokens=3)


@dataclass(frozen=True)
class Scenario:
    deltas: list[Any]
    reason: FinishReason = "eos"
    matched_stop: str | None = None
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)  # body fields by dialect

    @property
    def events(self) -> list[Event]:
        usage = Usage(USAGE.prompt_tokens, USAGE.cached_tokens, USAGE.completion_tokens, USAGE.reasoning_tokens)
        return [
            Started(prompt_tokens=12, cached_tokens=4, fingerprint="fp_0123456789ab"),
            *self.deltas,
            ChoiceFinished(self.reason, self.matched_stop),
            Finished(usage),
        ]


def token_logprob(token: str) -> TokenLogprob:
    raw = token.encode()
    return TokenLogprob(token, raw, -0.25, [TopLogprob(token, raw, -0.25), TopLogprob("x", b"x", -2.0)])


WEATHER: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: dict[str, dict[str, Any]] = {
    "messages": {"tools": [{"name": "weather", "description": "The weather", "input_schema": WEATHER}]},
    "responses": {
        "tools": [{"type": "function", "name": "weather", "description": "The weather", "parameters": WEATHER}]
    },
    "completions": {},
    "chat": {
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
    },
}
SCENARIOS = {
    "text": Scenario([TextDelta("Hello", 1), TextDelta(", wörld", 3), TextDelta(" 🌍!", 5)]),
    "thinking": Scenario(
        [ReasoningDelta("Let me", 2), ReasoningDelta(" see.", 3), TextDelta("Four", 4), TextDelta(".", 5)],
        extra={
            "messages": {"thinking": {"type": "adaptive"}},
            "responses": {"include": ["reasoning.encrypted_content"]},
        },
    ),
    "tools": Scenario(
        [
            TextDelta("Looking.", 2),
            ToolCallStart(0, "call_a1", "weather", 3),
            ToolCallArguments('{"city":', 5),
            ToolCallArguments(' "Paris"}', 7),
            ToolCallStart(1, "call_b2", "weather", 8),
            ToolCallArguments('{"city": "Ōsaka"}', 9),
        ],
        reason="tool_calls",
        extra=TOOLS,
    ),
    "length": Scenario([TextDelta("It was a dark and", 4)], reason="length"),
    "stop": Scenario([TextDelta("1, 2, 3", 4)], reason="stop_string", matched_stop="4"),
    "filtered": Scenario([TextDelta("Hm", 1)], reason="content_filter"),
    "empty": Scenario([]),
    "logprobs": Scenario(
        [TextDelta("Hi", 1, logprobs=[token_logprob("Hi")]), TextDelta(" you", 2, logprobs=[token_logprob(" you")])],
        extra={
            "completions": {"logprobs": 2},
            "responses": {"top_logprobs": 2},
            "chat": {"logprobs": True, "top_logprobs": 2},
        },
    ),
}
DIALECTS: dict[str, ModuleType] = {
    "messages": messages,
    "completions": completions,
    "responses": responses,
    "chat": chat,
}
BODIES: dict[str, dict[str, Any]] = {
    "messages": {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "Say hi."}]},
    "completions": {"model": MODEL, "prompt": "Say hi."},
    "responses": {"model": MODEL, "input": "Say hi."},
    "chat": {"model": MODEL, "messages": [{"role": "user", "content": "Say hi."}]},
}


def writer_of(name: str, *, stream: bool, extra: dict[str, Any] | None = None) -> Writer:
    body = {**BODIES[name], "stream": stream, **(extra or {})}
    dialect = DIALECTS[name]
    writer: Writer = dialect.make_writer(
        dialect.parse(orjson.dumps(body)), request_id=REQUEST_ID, model=MODEL, created=CREATED
    )
    if name == "responses":
        writer._clock = lambda: CREATED + 2.0  # type: ignore[attr-defined]
    return writer


def write_all(writer: Writer, events: list[Event]) -> list[bytes]:
    """What each event made the writer say."""
    written = []
    for event in events:
        written.append(writer.start(event) if isinstance(event, Started) else writer.feed(event))  # type: ignore[arg-type]
    return written


def stream_of(name: str, scenario: Scenario) -> bytes:
    extra = dict(scenario.extra.get(name, {}))
    if name in ("completions", "chat"):
        extra["stream_options"] = {"include_usage": True}
    return b"".join(write_all(writer_of(name, stream=True, extra=extra), scenario.events))


def result_of(name: str, scenario: Scenario) -> Any:
    writer = writer_of(name, stream=False, extra=scenario.extra.get(name))
    assert b"".join(write_all(writer, scenario.events)) == b""
    return orjson.loads(writer.result())


@dataclass(frozen=True)
class Frame:
    event: str | None
    data: Any


def frames_of(stream: bytes) -> list[Frame]:
    """Each frame is an optional event line and one data line, ended by a blank line."""
    frames = []
    assert stream.endswith(b"\n\n")
    for block in stream[:-2].split(b"\n\n"):
        if block.startswith(b":"):
            continue
        lines = block.split(b"\n")
        event = lines[0].removeprefix(b"event: ").decode() if lines[0].startswith(b"event: ") else None
        data = lines[-1].removeprefix(b"data: ")
        assert len(lines) == (2 if event else 1)
        frames.append(Frame(event, data.decode() if data == b"[DONE]" else orjson.loads(data)))
    return frames

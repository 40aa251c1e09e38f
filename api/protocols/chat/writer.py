"""Engine events to Chat Completions: chunks of a stream, or one object.

The constant head of a chunk is built once a call; a token costs one JSON string and two joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from api.protocols.openai import DONE, KEEPALIVE, error_frame, logprob_entries, usage_object
from inference_grpc.events import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)

FINISH_REASONS: dict[FinishReason, str] = {
    "eos": "stop", "stop_string": "stop", "length": "length", "context_full": "length",
    "tool_calls": "tool_calls", "cancelled": "stop", "content_filter": "content_filter",
}  # fmt: skip


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    fragments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    """What one choice said so far. A stream keeps only what later chunks depend on."""

    has_begun: bool = False
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    finish_reason: str = "stop"


class ChatWriter:
    def __init__(
        self,
        *,
        id: str,
        model: str,
        created: int,
        is_stream: bool,
        choices: int,
        include_usage: bool,
        is_legacy: bool,
        with_logprobs: bool,
    ) -> None:
        self._id, self._model, self._created = id, model, created
        self._is_stream = is_stream
        self._include_usage = include_usage
        self._is_legacy = is_legacy
        self._with_logprobs = with_logprobs
        self._choices = [_Choice() for _ in range(choices)]
        self._usage = Usage()
        self._fingerprint: str | None = None
        usage = b',"usage":null' if include_usage else b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._text_tail = b"}" + self._tail
        self._head = b""
        self._text_heads: list[bytes] = []

    def _envelope(self, object_type: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_type,
            "created": self._created,
            "model": self._model,
            "service_tier": "default",
            "system_fingerprint": self._fingerprint,
        }

    def _choice_head(self, index: int) -> bytes:
        return self._head + b',"choices":[{"index":%d,"delta":' % index

    # Stream -------------------------------------------------------------------------------------

    def start(self, event: Started) -> bytes:
        self._usage = Usage(event.prompt_tokens, event.cached_tokens)
        self._fingerprint = event.fingerprint or None
        self._head = b"data: " + orjson.dumps(self._envelope("chat.completion.chunk"))[:-1]
        self._text_heads = [self._choice_head(index) + b'{"content":' for index in range(len(self._choices))]
        return b""

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes:
        if not self._is_stream:
            self._collect(event)
            return b""
        if isinstance(event, Finished):
            return self._usage_chunk(event.usage) + DONE
        choice = self._choices[event.choice]
        opening = b"" if choice.has_begun else self._open(choice, event)
        if isinstance(event, TextDelta):
            if event.logprobs is None:
                return opening + self._text_heads[event.choice] + orjson.dumps(event.text) + self._text_tail
            return opening + self._logprob_chunk(event)
        if isinstance(event, ReasoningDelta):
            return opening + self._chunk(event.choice, {"reasoning_content": event.text})
        if isinstance(event, ToolCallStart):
            choice.calls.append(_Call(event.id, event.name))
            return opening + self._call_chunk(event.choice, choice)
        if isinstance(event, ToolCallArguments):
            return opening + self._arguments_chunk(event, choice)
        return opening + self._finish_chunk(event, choice)

    def _open(self, choice: _Choice, event: Delta | ChoiceFinished) -> bytes:
        """The role comes with the first delta: only then is it known whether text or a call follows."""
        choice.has_begun = True
        content = None if isinstance(event, ToolCallStart) else ""
        index = event.choice
        return self._chunk(index, {"role": "assistant", "content": content, "refusal": None})

    def _chunk(self, index: int, delta: dict[str, Any]) -> bytes:
        return self._choice_head(index) + orjson.dumps(delta) + self._tail

    def _logprob_chunk(self, event: TextDelta) -> bytes:
        logprobs = {"content": logprob_entries(event.logprobs or []), "refusal": None}
        tail = self._tail.replace(b'"logprobs":null', b'"logprobs":' + orjson.dumps(logprobs), 1)
        return self._choice_head(event.choice) + orjson.dumps({"content": event.text}) + tail

    def _call_chunk(self, index: int, choice: _Choice) -> bytes:
        call = choice.calls[-1]
        function = {"name": call.name, "arguments": ""}
        if self._is_legacy:
            return self._chunk(index, {"function_call": function}) if len(choice.calls) == 1 else b""
        position = len(choice.calls) - 1
        entry = {"index": position, "id": call.id, "type": "function", "function": function}
        return self._chunk(index, {"tool_calls": [entry]})

    def _arguments_chunk(self, event: ToolCallArguments, choice: _Choice) -> bytes:
        function = {"arguments": event.text}
        if self._is_legacy:
            return self._chunk(event.choice, {"function_call": function}) if len(choice.calls) == 1 else b""
        return self._chunk(event.choice, {"tool_calls": [{"index": len(choice.calls) - 1, "function": function}]})

    def _finish_chunk(self, event: ChoiceFinished, choice: _Choice) -> bytes:
        reason = orjson.dumps(self._finish_reason(event.reason, choice))
        tail = self._tail.replace(b'"finish_reason":null', b'"finish_reason":' + reason, 1)
        return self._choice_head(event.choice) + b"{}" + tail

    def _usage_chunk(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return b""
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage_object(usage)) + b"}\n\n"

    def fail(self, code: str, message: str) -> bytes:
        return error_frame(code, message)

    def keepalive(self) -> bytes:
        return KEEPALIVE

    # Plain --------------------------------------------------------------------------------------

    def _collect(self, event: Delta | ChoiceFinished | Finished) -> None:
        if isinstance(event, Finished):
            self._usage = event.usage
            return
        choice = self._choices[event.choice]
        if isinstance(event, TextDelta):
            choice.texts.append(event.text)
            choice.logprobs += event.logprobs or []
        elif isinstance(event, ReasoningDelta):
            choice.reasoning.append(event.text)
        elif isinstance(event, ToolCallStart):
            choice.calls.append(_Call(event.id, event.name))
        elif isinstance(event, ToolCallArguments):
            choice.calls[-1].fragments.append(event.text)
        else:
            choice.finish_reason = self._finish_reason(event.reason, choice)

    def _finish_reason(self, reason: FinishReason, choice: _Choice) -> str:
        # Clients act on calls only under this reason, also when the choice was forced and the model simply ended.
        if choice.calls and reason in ("eos", "stop_string", "tool_calls"):
            return "function_call" if self._is_legacy else "tool_calls"
        return FINISH_REASONS[reason]

    def result(self) -> bytes:
        answer = self._envelope("chat.completion")
        answer["choices"] = [self._choice_object(index, choice) for index, choice in enumerate(self._choices)]
        answer["usage"] = usage_object(self._usage)
        return orjson.dumps(answer)

    def _choice_object(self, index: int, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not choice.calls else None,
            "refusal": None,
            "annotations": [],
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        calls = [{"name": call.name, "arguments": "".join(call.fragments)} for call in choice.calls]
        if calls and self._is_legacy:
            message["function_call"] = calls[0]
        elif calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": function}
                for call, function in zip(choice.calls, calls, strict=True)
            ]
        logprobs = {"content": logprob_entries(choice.logprobs), "refusal": None} if self._with_logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}

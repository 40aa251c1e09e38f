"""Engine events to Anthropic's event stream, or to one message."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from api.errors import row_of
from api.protocols.json_repair import parse_object
from api.protocols.messages.parse import Parsed
from api.protocols.sealing import sign
from inference_grpc.events import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)

_STOP_REASONS: dict[FinishReason, str] = {
    "eos": "end_turn",
    "stop_string": "stop_sequence",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "cancelled": "end_turn",
}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def frame(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **data}))


def tool_use_id(call_id: str) -> str:
    """The engine's `call_…` in this API's clothes."""
    return call_id if call_id.startswith("toolu_") else "toolu_" + call_id.removeprefix("call_")


def usage_of(usage: Usage) -> dict[str, Any]:
    """The three input parts are disjoint here; their sum is the engine's prompt tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _message_usage(usage: Usage) -> dict[str, Any]:
    return {
        **usage_of(usage),
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    }


class Writer:
    """Blocks are strictly sequential: opening one closes the one before. Closed ones are kept for `result`."""

    def __init__(self, parsed: Parsed, *, request_id: UUID, model: str) -> None:
        self._id = f"msg_{request_id.hex}"
        self._request_id = str(request_id)
        self._model = model
        self._is_stream = parsed.request.stream
        self._shows_thinking = parsed.shows_thinking
        self._blocks: list[dict[str, Any]] = []
        self._open: str | None = None
        self._parts: list[str] = []
        self._delta_head = self._delta_tail = b""
        self._reason: FinishReason = "eos"
        self._matched_stop: str | None = None
        self._usage = Usage()

    # The stream --------------------------------------------------------------------------------------------------

    def start(self, event: Started) -> bytes:
        if not self._is_stream:
            return b""
        usage = Usage(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)
        message = self._message([], None, None, usage)
        return frame("message_start", {"message": message}) + _PING

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes:
        match event:
            case TextDelta(text=text):
                return self._piece("text", text)
            case ToolCallArguments(text=text):
                return self._piece("tool_use", text)
            case ReasoningDelta(text=text):
                return self._piece("thinking", text)
            case ToolCallStart():
                block = {"type": "tool_use", "id": tool_use_id(event.id), "name": event.name, "input": {}}
                return self._open_block("tool_use", block)
            case ChoiceFinished():
                self._reason, self._matched_stop = event.reason, event.matched_stop
                if event.reason == "eos" and any(block["type"] == "tool_use" for block in self._blocks):
                    self._reason = "tool_calls"
                return b""
            case Finished():
                return self._finish(event)

    def _piece(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        opening = b""
        if self._open != kind:
            if kind == "tool_use":
                raise ValueError("Tool call arguments came before the call's start.")
            opening = self._open_block(kind, {"type": kind, "text": ""} if kind == "text" else _EMPTY_THINKING)
        self._parts.append(text)
        if not self._is_stream or (kind == "thinking" and not self._shows_thinking):
            return opening
        return b"%b%b%b%b" % (opening, self._delta_head, orjson.dumps(text), self._delta_tail)

    def _open_block(self, kind: str, block: dict[str, Any]) -> bytes:
        closing = self._close_block()
        index = len(self._blocks)
        self._blocks.append(dict(block))
        self._open, self._parts = kind, []
        if not self._is_stream:
            return b""
        delta_type, key = _DELTAS[kind]
        self._delta_head = (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},'
            f'"delta":{{"type":"{delta_type}","{key}":'
        ).encode()
        self._delta_tail = b"}}\n\n"
        opening = closing + frame("content_block_start", {"index": index, "content_block": block})
        if kind == "tool_use":
            opening += self._delta_head + b'""' + self._delta_tail
        return opening

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        index, block, text = len(self._blocks) - 1, self._blocks[-1], "".join(self._parts)
        signature = b""
        if self._open == "text":
            block["text"] = text
        elif self._open == "tool_use":
            block["input"] = text  # parsed in `result`, where a broken one can still become text
        else:
            block["thinking"] = text if self._shows_thinking else ""
            block["signature"] = sign(text)
            if self._is_stream:
                delta = {"type": "signature_delta", "signature": block["signature"]}
                signature = frame("content_block_delta", {"index": index, "delta": delta})
        self._open = None
        return signature + frame("content_block_stop", {"index": index}) if self._is_stream else b""

    def _finish(self, event: Finished) -> bytes:
        closing = self._close_block()
        self._usage = event.usage
        if not self._is_stream:
            return b""
        delta = {
            "stop_reason": _STOP_REASONS[self._reason],
            "stop_sequence": self._stop_sequence(),
            "stop_details": None,
        }
        return (
            closing
            + frame("message_delta", {"delta": delta, "usage": usage_of(event.usage)})
            + frame("message_stop", {})
        )

    def fail(self, code: str, message: str) -> bytes:
        error = {"type": row_of(code).anthropic_type, "message": message}
        return frame("error", {"error": error, "request_id": self._request_id})

    def keepalive(self) -> bytes:
        return _PING

    # The plain answer --------------------------------------------------------------------------------------------

    def result(self) -> bytes:
        content: list[dict[str, Any]] = []
        for block in self._blocks:
            if block["type"] == "tool_use":
                arguments = parse_object(block["input"])
                # A call that is no JSON object even when its open ends are closed is shown as what the model wrote.
                block = {"type": "text", "text": block["input"]} if arguments is None else {**block, "input": arguments}
            content.append(block)
        reason = _STOP_REASONS[self._reason]
        if reason == "tool_use" and not any(block["type"] == "tool_use" for block in content):
            reason = "end_turn"
        return orjson.dumps(self._message(content, reason, self._stop_sequence(), self._usage))

    def _stop_sequence(self) -> str | None:
        return self._matched_stop if self._reason == "stop_string" else None

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop_sequence: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop_sequence,
            "stop_details": None,
            "usage": _message_usage(usage),
        }


_EMPTY_THINKING: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def make_writer(parsed: Parsed, *, request_id: UUID, model: str, created: int) -> Writer:
    return Writer(parsed, request_id=request_id, model=model)


def count_body(prompt_tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": prompt_tokens})


def context_exceeded(prompt_tokens: int, max_tokens: int, context_tokens: int) -> str:
    """In Anthropic's own words: agents read the numbers, then compact the conversation or ask for a shorter answer."""
    if prompt_tokens >= context_tokens:
        return f"prompt is too long: {prompt_tokens} tokens > {context_tokens} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {max_tokens} > {context_tokens}, "
        "decrease input length or `max_tokens` and try again"
    )


def error_body(*, status: int, type: str, code: str | None, message: str, param: str | None, request_id: str) -> bytes:
    return orjson.dumps({"type": "error", "error": {"type": type, "message": message}, "request_id": request_id})

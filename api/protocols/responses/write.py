"""Engine events to Responses' event stream, or to one Response object."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import orjson

from api.errors import row_of
from api.protocols.openai import KEEPALIVE
from api.protocols.responses.output_items import (
    CustomCallItem,
    Emitter,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    Status,
)
from api.protocols.responses.parse import Parsed
from api.protocols.responses.tools import ToolReference
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

_INCOMPLETE: dict[FinishReason, str] = {
    "length": "max_output_tokens",
    "context_full": "max_output_tokens",
    "content_filter": "content_filter",
}


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def response_id(request_id: UUID) -> str:
    return f"resp_{request_id.hex}"


class Writer:
    """One output item is open at a time; closed ones are kept for the last event and for `result`."""

    def __init__(
        self,
        parsed: Parsed,
        *,
        request_id: UUID,
        model: str,
        created: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._parsed = parsed
        self._unique = request_id.hex
        self._clock = clock
        self._emitter = Emitter(parsed.request.stream)
        # A Response with an agent's tools has 20 KB and is sent three times: all but its last members are encoded once.
        self._object_head = orjson.dumps(
            {
                "id": response_id(request_id),
                "object": "response",
                "created_at": created,
                "model": model,
                **parsed.echo,
            }
        )[:-1]
        self._output: list[dict[str, Any]] = []
        self._item: OutputItem | None = None
        self._reason: FinishReason = "eos"
        self._result = b""

    # The stream --------------------------------------------------------------------------------------------------

    def start(self, event: Started) -> bytes:
        if not self._emitter.is_stream:
            return b""
        response = b'"response":' + self._response("in_progress")
        return self._emitter.raw_event("response.created", response) + self._emitter.raw_event(
            "response.in_progress", response
        )

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes:
        match event:
            case TextDelta():
                return self._text(event)
            case ReasoningDelta():
                return self._reasoning(event)
            case ToolCallArguments():
                if not isinstance(self._item, FunctionCallItem):
                    raise ValueError("Tool call arguments came before the call's start.")
                return self._item.delta(event.text) if event.text else b""
            case ToolCallStart():
                return self._call(event)
            case ChoiceFinished():
                self._reason = event.reason
                return b""
            case Finished():
                return self._finish(event)

    def _text(self, event: TextDelta) -> bytes:
        if not (event.text or event.logprobs):
            return b""
        opening = b""
        if not isinstance(self._item, MessageItem):
            opening = self._open(MessageItem(self._emitter, self._next_index()))
        assert self._item is not None
        return opening + self._item.delta(event.text, event.logprobs)

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        if not event.text:
            return b""
        opening = b""
        if not isinstance(self._item, ReasoningItem):
            item = ReasoningItem(
                self._emitter,
                self._next_index(),
                as_summary=self._parsed.summarizes_reasoning,
                seals=self._parsed.seals_reasoning,
            )
            opening = self._open(item)
        assert self._item is not None
        return opening + self._item.delta(event.text)

    def _call(self, event: ToolCallStart) -> bytes:
        reference = self._parsed.tool_set.references.get(event.name) or ToolReference("function", event.name)
        kind = CustomCallItem if reference.kind == "custom" else FunctionCallItem
        return self._open(kind(self._emitter, self._next_index(), call_id=event.id, reference=reference))

    def _next_index(self) -> int:
        return len(self._output) + (self._item is not None)

    def _open(self, item: OutputItem) -> bytes:
        closing = self._close("completed")
        self._item = item
        return closing + item.open(f"{self._unique}{item.index:02d}")

    def _close(self, status: Status) -> bytes:
        if self._item is None:
            return b""
        frames = self._item.close(status)
        self._output.append(self._item.item)
        self._item = None
        return frames

    def _finish(self, event: Finished) -> bytes:
        status, details = "completed", None
        if event.cancelled or self._reason == "cancelled":
            status = "cancelled"
        elif self._reason in _INCOMPLETE:
            status, details = "incomplete", {"reason": _INCOMPLETE[self._reason]}
        frames = b""
        if self._item is None and not self._output:
            frames = self._open(MessageItem(self._emitter, 0))
        frames += self._close("completed" if status == "completed" else "incomplete")
        completed_at = int(self._clock()) if status == "completed" else None
        self._result = self._response(status, details=details, usage=event.usage, completed_at=completed_at)
        if not self._emitter.is_stream:
            return b""
        # A cancelled stream has nobody to read it; `incomplete` is the nearest ending that this API has.
        kind = "response.completed" if status == "completed" else "response.incomplete"
        return frames + self._emitter.raw_event(kind, b'"response":' + self._result)

    def fail(self, code: str, message: str) -> bytes:
        frames = self._close("incomplete")
        wire_code = "rate_limit_exceeded" if row_of(code).openai_status == 429 else "server_error"
        self._result = self._response("failed", error={"code": wire_code, "message": message})
        return frames + self._emitter.raw_event("response.failed", b'"response":' + self._result)

    def keepalive(self) -> bytes:
        return KEEPALIVE

    # The object --------------------------------------------------------------------------------------------------

    def _response(
        self,
        status: str,
        *,
        details: dict[str, str] | None = None,
        error: dict[str, str] | None = None,
        usage: Usage | None = None,
        completed_at: int | None = None,
    ) -> bytes:
        last = {
            "status": status,
            "completed_at": completed_at,
            "error": error,
            "incomplete_details": details,
            "output": self._output,
            "usage": usage_of(usage) if usage else None,
        }
        return self._object_head + b"," + orjson.dumps(last)[1:]

    def result(self) -> bytes:
        """The Response object as it stands at the end; also what is stored."""
        return self._result


def make_writer(parsed: Parsed, *, request_id: UUID, model: str, created: int) -> Writer:
    return Writer(parsed, request_id=request_id, model=model, created=created)


def count_body(prompt_tokens: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": prompt_tokens})

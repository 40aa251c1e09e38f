"""The life of one output item: its opening events, deltas and closing events, and the finished item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import orjson

from api.protocols.openai import logprob_entries
from api.protocols.responses.items import SEALED_REASONING
from api.protocols.responses.tools import ToolReference, custom_input
from api.protocols.sealing import seal
from inference_grpc.events import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class Emitter:
    """Makes frames and numbers them; silent for a plain call."""

    def __init__(self, is_stream: bool) -> None:
        self.is_stream = is_stream
        self.next_number = 0

    def event(self, kind: str, fields: dict[str, Any]) -> bytes:
        return self.raw_event(kind, orjson.dumps(fields)[1:-1]) if self.is_stream else b""

    def raw_event(self, kind: str, members: bytes) -> bytes:
        """`members`: the inside of a JSON object, already encoded."""
        number = self.next_number
        self.next_number = number + 1
        name = kind.encode()
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, number, members)

    def delta_head(self, kind: str, fields: dict[str, Any]) -> bytes:
        """The constant part of an item's deltas, built once."""
        return b'event: %b\ndata: %b,"sequence_number":' % (kind.encode(), orjson.dumps({"type": kind, **fields})[:-1])

    def delta(self, head: bytes, text: str) -> bytes:
        number = self.next_number
        self.next_number = number + 1
        return b'%b%d,"delta":%b}\n\n' % (head, number, orjson.dumps(text))


class OutputItem(ABC):
    """Text arrives through `delta`; `close` returns the last frames and leaves the whole item in `item`."""

    def __init__(self, emitter: Emitter, index: int) -> None:
        self.emitter = emitter
        self.index = index
        self.texts: list[str] = []
        self.item: dict[str, Any] = {}
        self.head = b""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def opened(self, item: dict[str, Any]) -> bytes:
        self.item = item
        return self.emitter.event("response.output_item.added", {"output_index": self.index, "item": item})

    def closed(self, item: dict[str, Any]) -> bytes:
        self.item = item
        return self.emitter.event("response.output_item.done", {"output_index": self.index, "item": item})

    def place(self, **inner: int) -> dict[str, Any]:
        return {"item_id": self.item["id"], "output_index": self.index, **inner}

    def delta(self, text: str, logprobs: list[TokenLogprob] | None = None) -> bytes:
        self.texts.append(text)
        return self.emitter.delta(self.head, text) if self.emitter.is_stream else b""

    @abstractmethod
    def open(self, id: str) -> bytes: ...

    @abstractmethod
    def close(self, status: Status) -> bytes: ...


class MessageItem(OutputItem):
    """The answer's text."""

    def __init__(self, emitter: Emitter, index: int) -> None:
        super().__init__(emitter, index)
        self.logprobs: list[dict[str, Any]] = []

    def open(self, id: str) -> bytes:
        item = {"id": f"msg_{id}", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        opening = self.opened(item)
        place = self.place(content_index=0)
        self.head = self.emitter.delta_head("response.output_text.delta", {**place, "logprobs": []})
        return opening + self.emitter.event("response.content_part.added", {**place, "part": self._part()})

    def delta(self, text: str, logprobs: list[TokenLogprob] | None = None) -> bytes:
        if not logprobs:
            return super().delta(text)
        entries = logprob_entries(logprobs)
        self.texts.append(text)
        self.logprobs += entries
        fields = {**self.place(content_index=0), "delta": text, "logprobs": entries}
        return self.emitter.event("response.output_text.delta", fields)

    def close(self, status: Status) -> bytes:
        place, part = self.place(content_index=0), self._part()
        frames = self.emitter.event(
            "response.output_text.done", {**place, "text": part["text"], "logprobs": self.logprobs}
        )
        frames += self.emitter.event("response.content_part.done", {**place, "part": part})
        return frames + self.closed({**self.item, "status": status, "content": [part]})

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}


class ReasoningItem(OutputItem):
    """What the model thought: as reasoning text, or as the summary when the caller asked for one."""

    def __init__(self, emitter: Emitter, index: int, *, as_summary: bool, seals: bool) -> None:
        super().__init__(emitter, index)
        self.as_summary = as_summary
        self.seals = seals

    def open(self, id: str) -> bytes:
        opening = self.opened({"id": f"rs_{id}", "type": "reasoning", "summary": []})
        if self.as_summary:
            place = self.place(summary_index=0)
            self.head = self.emitter.delta_head("response.reasoning_summary_text.delta", place)
            part = {"type": "summary_text", "text": ""}
            return opening + self.emitter.event("response.reasoning_summary_part.added", {**place, "part": part})
        place = self.place(content_index=0)
        self.head = self.emitter.delta_head("response.reasoning_text.delta", place)
        part = {"type": "reasoning_text", "text": ""}
        return opening + self.emitter.event("response.content_part.added", {**place, "part": part})

    def close(self, status: Status) -> bytes:
        text = self.text
        if self.as_summary:
            place, part = self.place(summary_index=0), {"type": "summary_text", "text": text}
            frames = self.emitter.event("response.reasoning_summary_text.done", {**place, "text": text})
            frames += self.emitter.event("response.reasoning_summary_part.done", {**place, "part": part})
            item = {**self.item, "summary": [part]}
        else:
            place, part = self.place(content_index=0), {"type": "reasoning_text", "text": text}
            frames = self.emitter.event("response.reasoning_text.done", {**place, "text": text})
            frames += self.emitter.event("response.content_part.done", {**place, "part": part})
            item = {**self.item, "content": [part]}
        if self.seals:
            item["encrypted_content"] = seal(text, SEALED_REASONING)
        return frames + self.closed(item)


class FunctionCallItem(OutputItem):
    def __init__(self, emitter: Emitter, index: int, *, call_id: str, reference: ToolReference) -> None:
        super().__init__(emitter, index)
        self.call_id = call_id
        self.reference = reference

    def named(self, id: str, kind: str, body: str) -> dict[str, Any]:
        item = {"id": id, "type": kind, "call_id": self.call_id, "name": self.reference.name, body: ""}
        if self.reference.namespace:
            item["namespace"] = self.reference.namespace
        return item

    def open(self, id: str) -> bytes:
        opening = self.opened({**self.named(f"fc_{id}", "function_call", "arguments"), "status": "in_progress"})
        self.head = self.emitter.delta_head("response.function_call_arguments.delta", self.place())
        return opening

    def close(self, status: Status) -> bytes:
        arguments = self.text
        frames = self.emitter.event(
            "response.function_call_arguments.done",
            {**self.place(), "name": self.reference.name, "arguments": arguments},
        )
        return frames + self.closed({**self.item, "arguments": arguments, "status": status})


class CustomCallItem(FunctionCallItem):
    """The model writes JSON arguments; the client is shown the free text in them, whole, at the end."""

    def open(self, id: str) -> bytes:
        return self.opened(self.named(f"ctc_{id}", "custom_tool_call", "input"))

    def delta(self, text: str, logprobs: list[TokenLogprob] | None = None) -> bytes:
        self.texts.append(text)
        return b""

    def close(self, status: Status) -> bytes:
        text = custom_input(self.text)
        place = self.place()
        frames = self.emitter.event("response.custom_tool_call_input.delta", {**place, "delta": text})
        frames += self.emitter.event("response.custom_tool_call_input.done", {**place, "input": text})
        return frames + self.closed({**self.item, "input": text})

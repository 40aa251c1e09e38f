"""Input items of a Responses call: to messages for the model, and to the form in which they are kept and listed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import orjson

from api.protocols.decoding import check_one_of, convert
from api.protocols.errors import BadRequest, missing, unsupported
from api.protocols.media import tool_returned
from api.protocols.request import Message, ToolCall
from api.protocols.responses.schema import Item, Part
from api.protocols.responses.tools import flat_name
from api.protocols.sealing import unseal

ID_LIMIT = 200
SEALED_REASONING, SEALED_SUMMARY = "reasoning", "compaction"

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "user": "user", "assistant": "assistant", "system": "system", "developer": "system",
}  # fmt: skip
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_MEDIA_PARTS = {"input_image": "an image", "input_file": "a file", "input_audio": "audio", "input_video": "a video"}
_ID_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs", "compaction": "cmp",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip


def as_items(given: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given or ())


def kind_of(item: dict[str, Any]) -> str | None:
    """`type` may be missing: an item with a role is a message, one with nothing but an id refers to a kept item."""
    kind = item.get("type")
    if kind is None and "role" in item:
        return "message"
    if kind is None and "id" in item:
        return "item_reference"
    return kind


class Conversation:
    """Messages from items, in their order. `add` raises BadRequest with the path of what it cannot read."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._call_names: dict[str, str] = {}
        self._reasoning: str | None = None

    def add(self, items: Iterable[dict[str, Any]], path: str) -> None:
        for index, raw in enumerate(items):
            self._add(kind_of(raw), convert(raw, Item, f"{path}[{index}]"), f"{path}[{index}]")

    def _add(self, kind: str | None, item: Item, path: str) -> None:
        if item.id is not None and (len(item.id) > ID_LIMIT or "\0" in item.id):
            raise BadRequest(
                f"'{path}.id' must have at most {ID_LIMIT} characters, none of them NUL.", f"{path}.id", "invalid_value"
            )
        match kind:
            case "message":
                self._message(item, path)
            case "function_call":
                self._call(item, path, item.arguments)
            case "custom_tool_call":
                self._call(item, path, orjson.dumps({"input": item.input or ""}).decode())
            case "function_call_output" | "custom_tool_call_output":
                self._output(item, path)
            case "reasoning":
                self._reasoning = _join(self._reasoning, _reasoning_text(item, path))
            case "compaction" | "compaction_summary":
                self._summary(item, path)
            case None:
                raise missing(f"{path}.type")
            case _:
                raise unsupported(f"{path}.type", f"'{path}' is an item of type '{kind}', which is not served.")

    def _message(self, item: Item, path: str) -> None:
        if item.role is None:
            raise missing(f"{path}.role")
        check_one_of(item.role, _ROLES, f"{path}.role")
        if item.content is None:
            raise missing(f"{path}.content")
        message = Message(_ROLES[item.role], _text(item.content, f"{path}.content"))
        if message.role == "assistant":
            message.reasoning = self._take_reasoning()
        self.messages.append(message)

    def _call(self, item: Item, path: str, arguments: str | None) -> None:
        if not item.call_id:
            raise missing(f"{path}.call_id")
        if not item.name:
            raise missing(f"{path}.name")
        name = flat_name(item.namespace, item.name)
        self._call_names[item.call_id] = name
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or self._reasoning is not None:
            last = Message("assistant", None, reasoning=self._take_reasoning())
            self.messages.append(last)
        last.tool_calls.append(ToolCall(item.call_id, name, arguments or "{}"))

    def _output(self, item: Item, path: str) -> None:
        if not item.call_id:
            raise missing(f"{path}.call_id")
        if item.call_id not in self._call_names:
            raise BadRequest(
                f"No tool call found for the output with call_id '{item.call_id}'.", f"{path}.call_id", "invalid_value"
            )
        if item.output is None:
            raise missing(f"{path}.output")
        if isinstance(item.output, dict):
            raise BadRequest(f"'{path}.output' must be a string or a list of parts.", f"{path}.output", "invalid_type")
        text = _text(item.output, f"{path}.output", is_result=True)
        name = self._call_names[item.call_id]
        self.messages.append(Message("tool", text, tool_call_id=item.call_id, name=name))

    def _summary(self, item: Item, path: str) -> None:
        summary = unseal(item.encrypted_content or "", SEALED_SUMMARY)
        if summary is None:
            raise BadRequest(
                f"'{path}.encrypted_content' was not made by this service; send the conversation itself.",
                f"{path}.encrypted_content",
                "invalid_value",
            )
        self.messages.append(Message("user", f"Summary of the conversation so far:\n{summary}"))

    def _take_reasoning(self) -> str | None:
        reasoning, self._reasoning = self._reasoning, None
        return reasoning


def _join(first: str | None, second: str | None) -> str | None:
    return f"{first}\n{second}" if first and second else first or second


def _reasoning_text(item: Item, path: str) -> str | None:
    """What the model thought: as sent, else what we sealed, else the summary. Foreign sealed reasoning is dropped."""
    if item.content:
        return _text(item.content, f"{path}.content")
    sealed = unseal(item.encrypted_content, SEALED_REASONING) if item.encrypted_content else None
    if sealed is not None:
        return sealed
    return _text(item.summary, f"{path}.summary") if item.summary else None


def _text(content: str | list[Part], path: str, *, is_result: bool = False) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}[{index}]", is_result) for index, part in enumerate(content))


def _part_text(part: Part, path: str, is_result: bool) -> str:
    if part.type in _TEXT_PARTS:
        if part.text is None:
            raise missing(f"{path}.text")
        return part.text
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in _MEDIA_PARTS:
        if is_result:
            return tool_returned(_MEDIA_PARTS[part.type])
        raise unsupported(path, f"'{path}' is {_MEDIA_PARTS[part.type]}, and this model reads text only.")
    raise unsupported(f"{path}.type", f"'{path}' is a part of the unknown type '{part.type}'.", "Use 'input_text'.")


def kept_items(items: Iterable[dict[str, Any]], unique: str) -> list[dict[str, Any]]:
    """Items as they are kept and listed: each with a type, an id, a status, and content as parts.

    `unique` makes the ids of those that came without one.
    """
    kept = []
    for index, raw in enumerate(items):
        kind = kind_of(raw) or "message"
        item = {**raw, "type": kind}
        if not item.get("id"):
            item["id"] = f"{_ID_PREFIXES.get(kind, 'item')}_{unique}i{index:02d}"
        if kind == "message" and isinstance(item.get("content"), str):
            part: dict[str, Any] = {"type": "input_text", "text": item["content"]}
            if item.get("role") == "assistant":
                part = {"type": "output_text", "text": item["content"], "annotations": [], "logprobs": []}
            item["content"] = [part]
        if kind not in ("reasoning", "compaction"):
            item.setdefault("status", "completed")
        kept.append(item)
    return kept

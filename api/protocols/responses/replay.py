"""A kept Response told again as events: GET /v1/responses/{id}?stream=true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from api.protocols.responses.output_items import (
    CustomCallItem,
    Emitter,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from api.protocols.responses.tools import ToolReference


def replay(response: dict[str, Any]) -> Iterator[bytes]:
    """Frames numbered from 0, the same each time: every item's text comes as one delta."""
    emitter = Emitter(is_stream=True)
    begun = {**response, "status": "in_progress", "completed_at": None, "output": [], "usage": None, "error": None}
    for kind in ("response.created", "response.in_progress"):
        yield emitter.event(kind, {"response": {**begun, "incomplete_details": None}})
    for index, kept in enumerate(response["output"]):
        item, text = _item(emitter, index, kept)
        yield item.open(kept["id"].split("_", 1)[1])
        if text:
            yield item.delta(text)
        yield item.close(kept.get("status", "completed"))
    status = response["status"] if response["status"] in ("completed", "failed") else "incomplete"
    yield emitter.event(f"response.{status}", {"response": response})


def _item(emitter: Emitter, index: int, kept: dict[str, Any]) -> tuple[OutputItem, str]:
    match kept["type"]:
        case "message":
            return MessageItem(emitter, index), kept["content"][0]["text"]
        case "reasoning":
            is_summary = bool(kept["summary"])
            part = (kept["summary"] if is_summary else kept["content"])[0]
            return ReasoningItem(emitter, index, as_summary=is_summary, seals=False), part["text"]
        case kind:
            is_custom = kind == "custom_tool_call"
            reference = ToolReference("custom" if is_custom else "function", kept["name"], kept.get("namespace"))
            call = CustomCallItem if is_custom else FunctionCallItem
            # A custom call's text stands inside JSON arguments until the item closes.
            text = orjson.dumps({"input": kept["input"]}).decode() if is_custom else kept["arguments"]
            return call(emitter, index, call_id=kept["call_id"], reference=reference), text

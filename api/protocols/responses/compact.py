"""POST /v1/responses/compact: the model sums a conversation up, and the summary goes home sealed.

A dialect of its own beside create: the same input, another answer. The sealed summary comes back as a `compaction`
item.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import orjson

from api.protocols.decoding import decode
from api.protocols.dialect import ErrorStyle
from api.protocols.openai import KEEPALIVE, error_body, error_frame
from api.protocols.request import Message
from api.protocols.responses import schema
from api.protocols.responses.items import SEALED_SUMMARY
from api.protocols.responses.parse import Parsed, expand, read_input
from api.protocols.responses.write import usage_of
from api.protocols.sealing import seal
from inference_grpc.events import ChoiceFinished, Delta, Finished, Started, TextDelta, Usage

__all__ = ["ERROR_STYLE", "NAME", "PATHS", "Parsed", "Writer", "error_body", "expand", "make_writer", "parse"]

NAME = "responses"
PATHS = frozenset({"/v1/responses/compact"})
ERROR_STYLE: ErrorStyle = "openai"

INSTRUCTION = (
    "Sum up the conversation so far so that it can be continued from your summary alone. Keep the task, decisions, "
    "names, numbers, open questions and the results of tool calls. Answer with the summary only."
)


def parse(body: bytes) -> Parsed:
    parsed = read_input(decode(schema.INPUT_BODY, body))
    parsed.closing = Message("user", INSTRUCTION)
    parsed.request.tools = []
    parsed.request.template_options = {"enable_thinking": False}
    if not parsed.needs_history:
        expand(parsed, history=(), referenced={})
    return parsed


class Writer:
    def __init__(self, *, request_id: UUID, clock: Callable[[], float] = time.time) -> None:
        self._unique = request_id.hex
        self._clock = clock
        self._texts: list[str] = []
        self._usage = Usage()

    def start(self, event: Started) -> bytes:
        return b""

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes:
        if isinstance(event, TextDelta):
            self._texts.append(event.text)
        elif isinstance(event, Finished):
            self._usage = event.usage
        return b""

    def fail(self, code: str, message: str) -> bytes:
        return error_frame(code, message)

    def keepalive(self) -> bytes:
        return KEEPALIVE

    def result(self) -> bytes:
        summary = "".join(self._texts)
        item: dict[str, Any] = {
            "id": f"cmp_{self._unique}",
            "type": "compaction",
            "encrypted_content": seal(summary, SEALED_SUMMARY),
        }
        return orjson.dumps(
            {
                "id": f"resp_{self._unique}",
                "object": "response.compaction",
                "created_at": int(self._clock()),
                "output": [item],
                "usage": usage_of(self._usage),
            }
        )


def make_writer(parsed: Parsed, *, request_id: UUID, model: str, created: int) -> Writer:
    return Writer(request_id=request_id)

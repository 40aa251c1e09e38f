"""Hermes style: `<tool_call>{"name": "f", "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import re
from collections.abc import Callable

from inference_grpc.core.request import Tool
from inference_grpc.text.families import CALL_CLOSE
from inference_grpc.text.output_parser.json_stream import JsonObjectStream
from inference_grpc.text.output_parser.pieces import Piece, ToolArgumentsPiece, ToolStartPiece
from inference_grpc.text.output_parser.readers import Outcome
from inference_grpc.text.output_parser.values import decode, encode

# The usual head, after which arguments are streamed. Any other order of keys is read once the call is whole.
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.){1,256}")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
_TAIL = re.compile(r"\s*\}?\s*")


class HermesCallReader:
    def __init__(self, tools: dict[str, Tool], new_id: Callable[[], str]) -> None:
        self.outcome: Outcome = "reading"
        self.rest = ""
        self._tools = tools
        self._new_id = new_id
        self._arguments: JsonObjectStream | None = None
        self._is_tail = False

    def feed(self, text: str) -> list[Piece]:
        self.rest += text
        pieces: list[Piece] = []
        if self._arguments is None:
            pieces += self._read_head()
        if self._arguments is not None and not self._is_tail:
            pieces += self._read_arguments(self._arguments)
        if self._is_tail:
            self._read_tail()
        return pieces

    def finish(self, *, is_truncated: bool) -> list[Piece]:
        if self._is_tail:
            self.rest = self.rest[_tail_end(self.rest) :]
            self.outcome = "called"
            return []
        if self._arguments is None:
            # A model may stop right behind the object, without the closing tag.
            return self._read_whole(self.rest, "")
        self.outcome = "called"
        self.rest = ""
        if is_truncated:
            return []
        return [ToolArgumentsPiece(self._arguments.close())]

    def _read_head(self) -> list[Piece]:
        bare = self.rest.lstrip()
        if bare and bare[0] != "{":
            self.outcome = "not_a_call"
            return []
        close_at = self.rest.find(CALL_CLOSE)
        head = _HEAD.match(self.rest)
        if head and (close_at < 0 or head.end() <= close_at):
            name = _decoded(head.group(1))
            if not isinstance(name, str) or name not in self._tools:
                self.outcome = "not_a_call"
                return []
            self.rest = self.rest[head.end() :]
            self._arguments = JsonObjectStream()
            return [ToolStartPiece(self._new_id(), name)]
        if close_at >= 0:
            return self._read_whole(self.rest[:close_at], self.rest[close_at + len(CALL_CLOSE) :])
        return []

    def _read_whole(self, text: str, rest: str) -> list[Piece]:
        call = _decoded(text)
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(name, str) or name not in self._tools:
            self.outcome = "not_a_call"
            return []
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):
            arguments = _decoded(arguments)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            self.outcome = "not_a_call"
            return []
        self.outcome = "called"
        self.rest = rest
        return [ToolStartPiece(self._new_id(), name), ToolArgumentsPiece(encode(arguments))]

    def _read_arguments(self, arguments: JsonObjectStream) -> list[Piece]:
        said = arguments.feed(self.rest)
        self.rest = ""
        if arguments.status == "broken":
            said += arguments.close()
            self.outcome = "called"
            self.rest = arguments.rest
        elif arguments.status == "complete":
            self._is_tail = True
            self.rest = arguments.rest
        return [ToolArgumentsPiece(said)] if said else []

    def _read_tail(self) -> None:
        tail = self.rest[_tail_end(self.rest) :]
        if tail.startswith(CALL_CLOSE):
            self.outcome = "called"
            self.rest = tail[len(CALL_CLOSE) :]
        elif not CALL_CLOSE.startswith(tail):
            self.outcome = "called"
            self.rest = tail


def _tail_end(text: str) -> int:
    found = _TAIL.match(text)
    return found.end() if found else 0


def _decoded(text: str) -> object:
    try:
        return decode(text)
    except ValueError:
        return None

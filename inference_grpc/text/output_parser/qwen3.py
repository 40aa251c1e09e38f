"""Qwen3.5 and later: `<tool_call><function=f><parameter=k>value</parameter>…</function></tool_call>`.

A parameter that the tool's schema says is a string is text as it stands and is streamed; any other is JSON and is given
out whole. One line break behind the opening tag and one before the closing tag belong to the tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from inference_grpc.core.request import Tool
from inference_grpc.text.families import CALL_CLOSE
from inference_grpc.text.output_parser.pieces import Piece, ToolArgumentsPiece, ToolStartPiece
from inference_grpc.text.output_parser.readers import Outcome, begun_length
from inference_grpc.text.output_parser.values import ALL_TYPES, as_json, encode, types_of

FUNCTION_OPEN = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER_OPEN = "<parameter="
PARAMETER_CLOSE = "</parameter>"

MAX_NAME = 256
_NAME = re.compile(r"[^<>\n]*")
# What may stand behind a value. Anything else shows that `</parameter>` was part of the value itself.
_BEHIND_VALUE = (PARAMETER_OPEN, FUNCTION_CLOSE, CALL_CLOSE)

State = Literal["function", "parameters", "value_start", "value", "tail"]


class Qwen3CallReader:
    def __init__(self, tools: dict[str, Tool], new_id: Callable[[], str]) -> None:
        self.outcome: Outcome = "reading"
        self.rest = ""
        self._tools = tools
        self._new_id = new_id
        self._state: State = "function"
        self._parameters: dict[str, frozenset[str]] = {}  # name: JSON types
        self._said: list[str] = []
        self._seen: set[str] = set()
        # Of the value being read:
        self._types = ALL_TYPES
        self._value = ""
        self._is_dropped = False

    def feed(self, text: str) -> list[Piece]:
        self.rest += text
        pieces: list[Piece] = []
        while self.outcome == "reading" and self._step(pieces):
            pass
        return pieces + self._spoken()

    def finish(self, *, is_truncated: bool) -> list[Piece]:
        if self._state == "function":
            self.outcome = "not_a_call"
            return []
        self.outcome = "called"
        if self._state == "tail":
            self.rest = self.rest.lstrip()
            return []
        value, self.rest = self.rest, ""
        if is_truncated:
            return []
        if self._state in ("value_start", "value"):
            is_closed = value.removeprefix("\n").startswith(PARAMETER_CLOSE)
            self._say_value("" if is_closed else value, is_last=True)
        self._said.append("}")
        return self._spoken()

    def _step(self, pieces: list[Piece]) -> bool:
        """Reads on by one element; False when it needs more text."""
        match self._state:
            case "function":
                return self._read_function(pieces)
            case "parameters":
                return self._read_parameter()
            case "value_start":
                return self._read_value_start()
            case "value":
                return self._read_value()
            case "tail":
                return self._read_tail()

    def _read_function(self, pieces: list[Piece]) -> bool:
        name = self._read_tag(self.rest.lstrip(), FUNCTION_OPEN)
        if name is None:
            return False
        if name not in self._tools:
            self.outcome = "not_a_call"
            return False
        self._drop_tag()
        schema = self._tools[name].parameters
        properties = schema.get("properties")
        if isinstance(properties, dict):
            self._parameters = {key: types_of(value, schema) for key, value in properties.items()}
        self._state = "parameters"
        self._said.append("{")
        pieces.append(ToolStartPiece(self._new_id(), name))
        return True

    def _read_parameter(self) -> bool:
        self.rest = self.rest.lstrip()
        for close in (FUNCTION_CLOSE, CALL_CLOSE):
            if self.rest.startswith(close):
                self._said.append("}")
                # A missing `</function>` is forgiven.
                self.rest = self.rest.removeprefix(FUNCTION_CLOSE)
                self._state = "tail"
                return True
        if any(close.startswith(self.rest) for close in (FUNCTION_CLOSE, CALL_CLOSE)):
            return False
        name = self._read_tag(self.rest, PARAMETER_OPEN)
        if name is None:
            return False
        if not name:
            self._said.append("}")
            self.outcome = "called"
            return False
        self._drop_tag()
        self._types = self._parameters.get(name, ALL_TYPES)
        self._value = ""
        self._is_dropped = name in self._seen  # of two values under one name the first stands
        if not self._is_dropped:
            self._said.append(("," if self._seen else "") + encode(name) + ":")
            if self._types == {"string"}:
                self._said.append('"')
        self._seen.add(name)
        self._state = "value_start"
        return True

    def _read_tag(self, text: str, opening: str) -> str | None:
        """The name in the tag at the start of `text`; "" if no such tag stands there, None if it may come yet."""
        if not text.startswith(opening):
            return None if opening.startswith(text) else ""
        found = _NAME.match(text, len(opening))
        end = found.end() if found else len(opening)
        name = text[len(opening) : end]
        if len(name) > MAX_NAME:
            return ""
        if end == len(text):
            return None
        return name if text[end] == ">" else ""

    def _drop_tag(self) -> None:
        self.rest = self.rest[self.rest.index(">") + 1 :]

    def _read_value_start(self) -> bool:
        if not self.rest:
            return False
        self.rest = self.rest.removeprefix("\n")
        self._state = "value"
        return True

    def _read_value(self) -> bool:
        at = self.rest.find(PARAMETER_CLOSE)
        while at >= 0:
            behind = self.rest[at + len(PARAMETER_CLOSE) :].lstrip()
            if behind.startswith(_BEHIND_VALUE):
                self._say_value(self.rest[:at].removesuffix("\n"), is_last=True)
                self.rest = behind
                self._state = "parameters"
                return True
            if any(tag.startswith(behind) for tag in _BEHIND_VALUE):
                self._say_value_before(at)
                return False
            at = self.rest.find(PARAMETER_CLOSE, at + 1)
        self._say_value_before(len(self.rest) - begun_length(self.rest, PARAMETER_CLOSE))
        return False

    def _say_value_before(self, at: int) -> None:
        """The value is settled up to `at`, less a line break there, which may belong to the closing tag."""
        settled = self.rest[:at].removesuffix("\n")
        self._say_value(settled, is_last=False)
        self.rest = self.rest[len(settled) :]

    def _say_value(self, text: str, *, is_last: bool) -> None:
        if self._is_dropped:
            return
        if self._types == {"string"}:
            self._said.append(encode(text)[1:-1] + ('"' if is_last else ""))
            return
        self._value += text
        if is_last:
            self._said.append(as_json(self._value, self._types))

    def _read_tail(self) -> bool:
        tail = self.rest.lstrip()
        if tail.startswith(CALL_CLOSE):
            self.outcome = "called"
            self.rest = tail[len(CALL_CLOSE) :]
        elif not CALL_CLOSE.startswith(tail):
            self.outcome = "called"
            self.rest = tail
        return False

    def _spoken(self) -> list[Piece]:
        said = "".join(self._said)
        self._said.clear()
        return [ToolArgumentsPiece(said)] if said else []

"""Reads one JSON object out of a stream of text and repeats it at once as compact JSON that stays valid.

Strings pass through as they come; a number or literal is held until it is whole, and a comma until something follows.
So whatever has been given out can be completed at any time by `close`.
"""

from __future__ import annotations

import json
import re
from typing import Literal

MAX_DEPTH = 128

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ATOM = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
# Models that were trained on much Python write its literals now and then.
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_SPACE = " \t\r\n"

Expected = Literal["object", "key", "colon", "value", "item", "next", "string"]


class JsonObjectStream:
    """`feed` until `status` leaves "reading"; `rest` is then the text behind the object, or from where it broke."""

    def __init__(self) -> None:
        self.status: Literal["reading", "complete", "broken"] = "reading"
        self.rest = ""
        self._stack: list[str] = []  # closing brackets still owed
        self._expected: Expected = "object"
        self._string_is_key = False
        self._comma = ""

    def feed(self, text: str) -> str:
        """The JSON text that this much more of the stream settles. Not to be called once the object has ended."""
        self.rest += text
        out: list[str] = []
        while self.status == "reading" and self.rest:
            said = self._read_string() if self._expected == "string" else self._read_structure()
            if said is None:
                break
            out.append(said)
        return "".join(out)

    def close(self) -> str:
        """What completes the text given out so far into one valid object; a value not begun becomes null."""
        out: list[str] = []
        if self._expected == "object":
            out.append("{}")
        elif self._expected == "string":
            out.append('"')
            self._expected = "colon" if self._string_is_key else "next"
        elif self._expected in ("value", "item") and (atom := _atom(self.rest.strip(_SPACE))) is not None:
            out.append(self._comma + atom)
            self._expected = "next"
        if self._expected == "colon":
            out.append(":null")
        elif self._expected == "value":
            out.append("null")
        out.extend(reversed(self._stack))
        self._stack.clear()
        self.status = "complete"
        return "".join(out)

    def _read_string(self) -> str | None:
        rest = self.rest
        if plain := _PLAIN.match(rest):
            return self._take(plain.end())
        if rest[0] == '"':
            self._expected = "colon" if self._string_is_key else "next"
            return self._take(1)
        if rest[0] != "\\":
            # A raw control character, which JSON forbids: said as its escape.
            return json.dumps(self._take(1))[1:-1]
        if escape := _ESCAPE.match(rest):
            return self._take(escape.end())
        if _ESCAPE_BEGUN.match(rest):
            return None
        self._take(1)
        return "\\\\"

    def _read_structure(self) -> str | None:
        self.rest = self.rest.lstrip(_SPACE)
        if not self.rest:
            return None
        char = self.rest[0]
        match self._expected:
            case "object" if char == "{":
                return self._open("{")
            case "key" | "item" | "next" if self._stack and char == self._stack[-1]:
                return self._shut()
            case "key" if char == '"':
                return self._begin_string(is_key=True)
            case "colon" if char == ":":
                self._expected = "value"
                return self._take(1)
            case "next" if char == ",":
                self._take(1)
                self._comma = ","
                self._expected = "key" if self._stack[-1] == "}" else "item"
                return ""
            case "value" | "item" if char == '"':
                return self._begin_string(is_key=False)
            case "value" | "item" if char in "{[" and len(self._stack) < MAX_DEPTH:
                return self._open(char)
            case "value" | "item" if found := _ATOM.match(self.rest):
                if found.end() == len(self.rest):
                    return None
                if (atom := _atom(found.group())) is not None:
                    self._take(found.end())
                    self._expected = "next"
                    return self._with_comma(atom)
        self.status = "broken"
        return None

    def _open(self, bracket: str) -> str:
        self._stack.append("}" if bracket == "{" else "]")
        self._expected = "key" if bracket == "{" else "item"
        return self._with_comma(self._take(1))

    def _shut(self) -> str:
        self._comma = ""  # one comma too many before the bracket is forgiven
        self._stack.pop()
        self._expected = "next"
        if not self._stack:
            self.status = "complete"
        return self._take(1)

    def _begin_string(self, *, is_key: bool) -> str:
        self._expected = "string"
        self._string_is_key = is_key
        return self._with_comma(self._take(1))

    def _with_comma(self, text: str) -> str:
        comma, self._comma = self._comma, ""
        return comma + text

    def _take(self, count: int) -> str:
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


def _atom(text: str) -> str | None:
    if _NUMBER.match(text):
        return text
    return _LITERALS.get(text)

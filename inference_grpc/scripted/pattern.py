"""A short string that matches a regular expression."""

from __future__ import annotations

import importlib
import re
import string
from typing import Any

from inference_grpc.errors import UnsupportedSchema

# The standard library's own parser; its tree has no public types.
_parser: Any = importlib.import_module("re._parser")
_ALPHABET = string.ascii_lowercase + string.digits + string.ascii_uppercase + " " + string.punctuation + "\n\t"
_CATEGORIES = {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}
_CATEGORIES |= {f"CATEGORY_NOT_{name[9:]}": form.upper() for name, form in list(_CATEGORIES.items())}


def string_for(pattern: str, *, min_length: int = 0) -> str:
    """Matches `pattern` as a whole. Raises `UnsupportedSchema` for what it cannot follow, look-arounds first of all."""
    try:
        tree = _parser.parse(pattern)
    except re.error as error:
        raise UnsupportedSchema(f"The pattern {pattern!r} is not understood: {error}", keyword="pattern") from None
    for extra in (0, min_length, 4 * min_length):
        text = _Writer(pattern, extra).sequence(tree)
        if len(text) >= min_length and re.search(pattern, text):
            return text
    raise UnsupportedSchema(
        f"No string of length {min_length} was found for the pattern {pattern!r}.", keyword="pattern"
    )


class _Writer:
    def __init__(self, pattern: str, extra: int) -> None:
        self._pattern = pattern
        self._extra = extra  # characters that repeats may still add to reach a least length
        self._groups: dict[int, str] = {}

    def sequence(self, tree: Any) -> str:
        return "".join(self._node(str(kind), value) for kind, value in tree)

    def _node(self, kind: str, value: Any) -> str:
        match kind:
            case "LITERAL":
                return chr(value)
            case "NOT_LITERAL":
                return next(char for char in _ALPHABET if char != chr(value))
            case "ANY":
                return "a"
            case "IN":
                return self._one_of(value)
            case "BRANCH":
                return self.sequence(value[1][0])
            case "SUBPATTERN":
                text = self.sequence(value[3])
                if value[0] is not None:
                    self._groups[value[0]] = text
                return text
            case "GROUPREF":
                return self._groups[int(value)]
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self._repeat(*value)
            case "ATOMIC_GROUP":
                return self.sequence(value)
            case "AT":
                return ""
        raise UnsupportedSchema(f"The pattern {self._pattern!r} uses {kind.lower()}.", keyword="pattern")

    def _repeat(self, least: int, most: Any, body: Any) -> str:
        # `most` may be the parser's MAXREPEAT, which compares as a very large number.
        count = least
        if self._extra and most > least:
            added = min(int(most) - least, self._extra)
            count += added
            self._extra -= added
        return "".join(self.sequence(body) for _ in range(count))

    def _one_of(self, members: Any) -> str:
        is_negated = any(str(kind) == "NEGATE" for kind, _ in members)
        for char in _ALPHABET:
            if any(_holds(char, str(kind), value) for kind, value in members) != is_negated:
                return char
        for kind, value in members:
            if str(kind) == "LITERAL" and not is_negated:
                return chr(value)
            if str(kind) == "RANGE" and not is_negated:
                return chr(value[0])
        raise UnsupportedSchema(f"No character was found for a class of {self._pattern!r}.", keyword="pattern")


def _holds(char: str, kind: str, value: Any) -> bool:
    if kind == "LITERAL":
        return ord(char) == int(value)
    if kind == "RANGE":
        return int(value[0]) <= ord(char) <= int(value[1])
    if kind == "CATEGORY":
        return re.match(_CATEGORIES[str(value)], char) is not None
    return False

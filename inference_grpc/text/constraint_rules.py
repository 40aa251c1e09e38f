"""The pieces that grammars are written with: rules, literals, JSON values."""

from __future__ import annotations

import json

from inference_grpc.text.constraint_schema import Schema

# White space between the tokens of JSON: one space, or a line break and an indentation. Each place takes it once, so
# that no model can go on with spaces for ever.
WHITESPACE = r"\x20|\n\x20{0,20}|\n\t{0,8}"


class Rules:
    """Rules by name; a body added to a name that is there is an alternative."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[str]] = {}

    def add(self, name: str, body: str) -> None:
        self._bodies.setdefault(name, []).append(body)

    def add_once(self, name: str, body: str) -> None:
        self._bodies.setdefault(name, [body])

    def text(self) -> str:
        return "\n".join(f"{name}: {' | '.join(bodies)}" for name, bodies in self._bodies.items())


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def until(tag: str) -> str:
    """Any text up to `tag`, with it; for a rule that is marked lazy."""
    return f"/(?s:.*){tag.replace('/', chr(92) + '/')}/"


def json_value(schema: Schema) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})

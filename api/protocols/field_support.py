"""The fields that each dialect accepts without effect or never accepts, read from the marks in its schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from api.protocols import completions
from api.protocols.chat.schema import Body as ChatBody
from api.protocols.decoding import marked_fields
from api.protocols.messages.schema import Body as MessagesBody
from api.protocols.responses.schema import Body as ResponsesBody

SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "Chat Completions": ChatBody,
    "Completions": completions.Body,
    "Responses": ResponsesBody,
    "Messages": MessagesBody,
}


def marked_paths(schema: type[msgspec.Struct], support: str) -> list[tuple[str, str]]:
    """(path, why) of all marked fields below a schema; a list's elements are written `[]`."""
    return list(_walk(schema, support, "", set()))


def _walk(
    schema: type[msgspec.Struct], support: str, prefix: str, seen: set[type[msgspec.Struct]]
) -> Iterator[tuple[str, str]]:
    for name, why in marked_fields(schema, support):
        yield prefix + name, why
    seen = seen | {schema}
    for name, hint in get_type_hints(schema).items():
        for inner, is_list in _structs(hint):
            if inner not in seen:
                yield from _walk(inner, support, f"{prefix}{name}{'[]' if is_list else ''}.", seen)


def _structs(hint: Any, is_list: bool = False) -> Iterator[tuple[type[msgspec.Struct], bool]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint, is_list
    for part in get_args(hint):
        if isinstance(part, type) or get_args(part):
            yield from _structs(part, is_list or getattr(hint, "__origin__", None) is list)


def as_markdown() -> str:
    lines = []
    for title, schema in SCHEMAS.items():
        lines += [f"### {title}", ""]
        for support, heading in (("ignored", "Accepted without effect"), ("refused", "Refused with 400")):
            rows = marked_paths(schema, support)
            if rows:
                lines += [f"| {heading} | because |", "|---|---|"]
                lines += [f"| `{path}` | {why} |" for path, why in rows]
                lines.append("")
    return "\n".join(lines).rstrip() + "\n"

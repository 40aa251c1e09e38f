"""Read the JSON arguments of a tool call, closing what an answer cut short has left open."""

from __future__ import annotations

from typing import Any

import orjson


def parse_object(text: str) -> dict[str, Any] | None:
    """The object in `text`; {} for no text; None when it is not one even with its open ends closed."""
    if not text.strip():
        return {}
    for candidate in (text, _closed(text)):
        try:
            value = orjson.loads(candidate)
        except orjson.JSONDecodeError:
            continue
        return value if isinstance(value, dict) else None
    return None


def _closed(text: str) -> str:
    """Close the string and the brackets still open at the end; drop a key without value and a trailing comma."""
    closers: list[str] = []
    in_string = False
    escaped = False
    # Where the text may be cut so that only whole members remain, with the closers open there.
    safe_end, safe_closers = 0, [*closers]
    for position, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
            continue
        if char == '"':
            in_string = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
            safe_end, safe_closers = position + 1, [*closers]
        elif char in "}]" and closers:
            closers.pop()
            safe_end, safe_closers = position + 1, [*closers]
        elif char == ",":
            safe_end, safe_closers = position, [*closers]
    whole = (text[:-1] if escaped else text) + ('"' if in_string else "") + "".join(reversed(closers))
    try:
        orjson.loads(whole)
    except orjson.JSONDecodeError:
        return text[:safe_end] + "".join(reversed(safe_closers))
    return whole

"""Decode a wire body into its schema. Every refusal names the field by its path and says what would be accepted.

Schemas are msgspec Structs: unknown fields pass, a wrong type of a known one is refused. A field that is accepted but
changes nothing is marked `ignored(why)`, one that is never accepted `refused(why)`; the lists in docs/api/protocols.md
are generated from these marks.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from functools import cache
from typing import Annotated, TypeVar, get_type_hints

import msgspec

from api.protocols.errors import BadRequest

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"^Object missing required field `(\w+)`$")
_WRONG_TYPE = re.compile(r"^Expected `([^`]+)`, got `([^`]+)`$")
_OUT_OF_RANGE = re.compile(r"^Expected `\w+`(?: of length)? ([<>]=?) (.+)$")
# Whole escapes of JSON: a pair of surrogates, half of one, and any other.
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(rb"\\(?:" + _PAIR + rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_JSON_NAMES = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "object": "an object",
    "array": "an array", "null": "null",
}  # fmt: skip
_COMPARISONS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}

# What a refused field may hold all the same, for clients that always send it.
NOTHING: tuple[object, ...] = (None, False, [], {})
# Whole numbers as engines take them; a larger one is refused by name here.
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TopK = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
METADATA_MAX_ENTRIES, METADATA_MAX_KEY, METADATA_MAX_VALUE = 16, 64, 512


def ignored(why: str) -> msgspec.Meta:
    """Mark a schema field as accepted without effect."""
    return msgspec.Meta(description=f"Without effect: {why}.", extra={"support": "ignored", "why": why})


def refused(why: str) -> msgspec.Meta:
    """Mark a schema field as never accepted; `refuse_marked_fields` answers for it."""
    return msgspec.Meta(
        description=f"Refused: {why}.",
        extra={"support": "refused", "why": why},
        extra_json_schema={"enum": list(NOTHING)},
    )


def named(name: str) -> msgspec.Meta:
    """Mark a field of another API that is `name` in this one: without effect, it would surprise its sender."""
    return refused(f"in this API it is '{name}'")


def one_of(*words: str) -> msgspec.Meta:
    """Say in the OpenAPI document which words a text may be; `check_one_of` enforces it, with a better message."""
    return msgspec.Meta(extra_json_schema={"enum": list(words)})


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise explain(error) from None
    except msgspec.DecodeError as error:
        if (mended := mend(body)) != body:
            return decode(decoder, mended)
        raise BadRequest(_why_not_json(body, str(error)), None, "invalid_json") from None
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.", None, "invalid_json") from None
    refuse_marked_fields(value)
    return value


def mend(body: bytes) -> bytes:
    """JSON without what programs put into it by mistake; the body itself where there is nothing of it.

    A byte order mark, and halves of a surrogate pair: agents cut what a tool printed in the middle of an emoji, and
    their JSON then holds an escape that stands for no character. It becomes the replacement character.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    return _ESCAPES.sub(lambda found: rb"\ufffd" if found["half"] else found[0], body) if b"\\u" in body else body


def _why_not_json(body: bytes, error: str) -> str:
    if not body:
        return "The request body is empty; send a JSON object."
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body[:2]:
        return "The request body is in UTF-16 or UTF-32; send JSON in UTF-8."
    return f"The request body is not valid JSON: {error}."


def convert(value: object, schema: type[T], path: str) -> T:
    """Turn already decoded JSON into a schema; `path` is where it stands in the body."""
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        raise explain(error, path) from None


def explain(error: msgspec.ValidationError, root: str = "") -> BadRequest:
    """Say in the client's words (JSON types, dotted path) what msgspec found."""
    text = str(error)
    path = root
    if found := _PATH.search(text):
        text = text[: found.start()]
        inner = found.group(1)
        path = f"{root}.{inner}" if root and inner and inner[0] != "[" else root + inner
    if missing := _MISSING.match(text):
        param = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return BadRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    where = f"'{path}'" if path else "The request body"
    if wrong := _WRONG_TYPE.match(text):
        expected = " or ".join(_JSON_NAMES.get(name, name) for name in wrong.group(1).split(" | "))
        got = _JSON_NAMES.get(wrong.group(2), wrong.group(2))
        return BadRequest(f"{where} must be {expected}, not {got}.", path or None, "invalid_type")
    if limit := _OUT_OF_RANGE.match(text):
        bound = limit.group(2).removesuffix(".0")
        return BadRequest(f"{where} must be {_COMPARISONS[limit.group(1)]} {bound}.", path or None, "invalid_value")
    return BadRequest(f"{where}: {text}.", path or None, "invalid_value")


@cache
def marked_fields(schema: type[msgspec.Struct], support: str) -> tuple[tuple[str, str], ...]:
    """(field, why) of a schema's fields with that mark."""
    hints = get_type_hints(schema, include_extras=True)
    marked = []
    for name, hint in hints.items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra and meta.extra.get("support") == support:
                marked.append((name, str(meta.extra["why"])))
    return tuple(marked)


def refuse_marked_fields(value: msgspec.Struct) -> None:
    for name, why in marked_fields(type(value), "refused"):
        if getattr(value, name) not in NOTHING:
            raise BadRequest(f"'{name}' is not supported: {why}.", name, "unsupported_parameter")


def check_one_of(value: str, allowed: Collection[str], param: str) -> None:
    if value not in allowed:
        names = ", ".join(f"'{name}'" for name in allowed)
        raise BadRequest(f"Invalid value for '{param}': '{value}'. Use one of {names}.", param, "invalid_value")


def check_metadata(metadata: dict[str, str] | None) -> None:
    if not metadata:
        return
    if len(metadata) > METADATA_MAX_ENTRIES:
        raise BadRequest(
            f"'metadata' has {len(metadata)} entries; at most {METADATA_MAX_ENTRIES} are kept.",
            "metadata",
            "invalid_value",
        )
    for key, text in metadata.items():
        if len(key) > METADATA_MAX_KEY:
            raise BadRequest(
                f"A key of 'metadata' has {len(key)} characters; the limit is {METADATA_MAX_KEY}.",
                "metadata",
                "invalid_value",
            )
        if len(text) > METADATA_MAX_VALUE:
            raise BadRequest(
                f"'metadata.{key}' has {len(text)} characters; the limit is {METADATA_MAX_VALUE}.",
                f"metadata.{key}",
                "invalid_value",
            )

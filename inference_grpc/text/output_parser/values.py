"""Values of a call's parameters that arrive as plain text: their type comes from the tool's JSON Schema."""

from __future__ import annotations

import json
from typing import Any

ALL_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
MAX_DEPTH = 32


def types_of(schema: Any, root: dict[str, Any]) -> frozenset[str]:
    """The JSON types that a value may have under `schema`, which is free form; `root` is where `$ref` points into.

    Says "all" where the schema does not tell, as in a reference that only leads back to itself.
    """
    return _types_of(schema, root, {}, 0)


def _types_of(schema: Any, root: dict[str, Any], known: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return ALL_TYPES
    types = ALL_TYPES
    match schema.get("type"):
        case str(name):
            types &= {name}
        case list(names):
            types &= {name for name in names if isinstance(name, str)}
    if "number" in types:
        types |= {"integer"}
    if "const" in schema:
        types &= {type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        types &= {type_of(value) for value in schema["enum"]}
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = ALL_TYPES
            known[reference] = _types_of(resolve(reference, root), root, known, depth + 1)
        types &= known[reference]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            types &= frozenset().union(*(_types_of(choice, root, known, depth + 1) for choice in schema[key]))
    if isinstance(schema.get("allOf"), list):
        for part in schema["allOf"]:
            types &= _types_of(part, root, known, depth + 1)
    return types or ALL_TYPES


def resolve(reference: str, root: dict[str, Any]) -> Any:
    """The schema that a local reference (`#/$defs/name`) names, or None. Schemas are free form, hence `Any`."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def type_of(value: object) -> str:
    """The JSON type of a decoded value; whole numbers are integers, as JSON Schema has it."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case list():
            return "array"
        case _:
            return "object"


def decode(text: str) -> object:
    """`json.loads` that keeps to JSON (no NaN) and has one way to fail: ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def encode(value: object) -> str:
    """Compact JSON; escapes only what UTF-8 cannot carry."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def as_json(text: str, types: frozenset[str]) -> str:
    """`text` as a JSON value of one of `types` if it can be read as one, else as a JSON string. Never fails."""
    if types == {"string"}:
        return encode(text)
    bare = text.strip()
    literal = {"none": "null"}.get(bare.lower(), bare.lower())
    if (literal == "null" and "null" in types) or (literal in ("true", "false") and "boolean" in types):
        return literal
    try:
        value = decode(bare)
    except ValueError:
        return encode(text)
    if type_of(value) in types or "string" not in types:
        return bare
    return encode(text)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")

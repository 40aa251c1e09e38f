"""An instance of a JSON Schema, filled with the numbers and names that a prompt mentions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inference_grpc.errors import UnsupportedSchema
from inference_grpc.scripted.pattern import string_for

Schema = dict[str, Any] | bool  # free form by nature

DEPTH_OF_OPTIONALS = 6  # deeper, only what is required is filled, so that recursive schemas end
DEPTH_LIMIT = 48
# Keywords whose meaning could make a filled instance invalid, and which are not followed.
UNSUPPORTED = (
    "not",
    "if",
    "dependentSchemas",
    "dependentRequired",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
)
FORMATS = {
    "date-time": "2024-01-31T12:00:00Z",
    "date": "2024-01-31",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "ada@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


@dataclass(slots=True)
class Hints:
    """What a prompt offers for the fields, used up in order."""

    numbers: list[float] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)

    def take_string(self, default: str) -> str:
        return self.strings.pop(0) if self.strings else default

    def take_number(self, is_integer: bool) -> float | None:
        for index, number in enumerate(self.numbers):
            if not is_integer or number == int(number):
                return self.numbers.pop(index)
        return None


def read_hints(text: str) -> Hints:
    """Numbers; then quoted texts, runs of other scripts and names of several capitalised words, in this order."""
    numbers = [float(number) for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])", text)]
    quoted = [
        part for groups in re.findall(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`\n]+)`|“([^”\n]+)”", text) for part in groups
    ]
    foreign = re.findall(r"[^\x00-\x7f‘’“”]+", text)
    names = re.findall(r"(?<=\w )[A-Z]\w+(?: [A-Z]\w+)*", text)
    strings = [part for part in [*quoted, *foreign, *names] if part.strip()]
    return Hints(numbers, list(dict.fromkeys(strings)))


def instance_of(schema: Schema, hints: Hints, *, is_strict: bool = True) -> Any:
    """A valid instance. `is_strict` raises `UnsupportedSchema` for what cannot be promised, else it is left aside."""
    return _Filler(schema, hints, is_strict).fill(schema, "value", 0, 0)


class _Filler:
    def __init__(self, root: Schema, hints: Hints, is_strict: bool) -> None:
        self._root = root
        self._hints = hints
        self._is_strict = is_strict

    def fill(self, schema: Schema, name: str, depth: int, variant: int) -> Any:
        """`name` is what the field is called, `variant` tells the items of a unique array apart."""
        if depth > DEPTH_LIMIT:
            raise UnsupportedSchema("The schema requires itself without end.", keyword="$ref")
        if isinstance(schema, bool):
            if not schema:
                raise UnsupportedSchema("A part of the schema allows no value.", keyword="false")
            return self._hints.take_string(name)
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][variant % len(schema["enum"])]
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                rest = {key: value for key, value in schema.items() if key != keyword}
                return self._fill_one_of(schema[keyword], rest, name, depth, variant)
        kind = _kind(schema, variant)
        if kind == "object":
            return self._fill_object(schema, depth)
        if kind == "array":
            return self._fill_array(schema, name, depth)
        if kind == "string":
            return self._fill_string(schema, name, variant)
        if kind in ("integer", "number"):
            return self._fill_number(schema, kind == "integer", variant)
        return (variant % 2 == 0) if kind == "boolean" else None

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        seen = 0
        while "$ref" in schema or schema.get("allOf"):
            seen += 1
            if seen > DEPTH_LIMIT:
                raise UnsupportedSchema("A $ref leads back to itself.", keyword="$ref")
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
            parts = [part for part in schema.get("allOf", []) if part is not True]
            if "$ref" in schema:
                parts.append(self._target(schema["$ref"]))
            schema = rest
            for part in parts:
                schema = _merged(schema, part)
        for keyword in UNSUPPORTED:
            if keyword in schema and self._is_strict:
                raise UnsupportedSchema(f"The JSON Schema keyword {keyword!r} is not supported.", keyword=keyword)
        return schema

    def _target(self, reference: str) -> dict[str, Any]:
        target: Any = self._root
        if not reference.startswith("#"):
            raise UnsupportedSchema(f"$ref {reference!r} leads out of the schema.", keyword="$ref")
        try:
            for part in reference[1:].split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                target = target[int(part)] if isinstance(target, list) else target[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise UnsupportedSchema(f"$ref {reference!r} leads nowhere.", keyword="$ref") from None
        return target if isinstance(target, dict) else {}

    def _fill_one_of(self, options: list[Schema], rest: dict[str, Any], name: str, depth: int, variant: int) -> Any:
        # Deep down, the option that ends soonest; above, the first that says something.
        ranked = sorted(options, key=_weight if depth > DEPTH_OF_OPTIONALS else _is_null)
        if depth <= DEPTH_OF_OPTIONALS:
            plain = [option for option in ranked if not _is_null(option)] or ranked
            ranked = [*plain[variant % len(plain) :], *plain[: variant % len(plain)], *ranked]
        failure: UnsupportedSchema | None = None
        for option in ranked:
            try:
                return self.fill(
                    _merged(rest, option) if isinstance(option, dict) else option, name, depth + 1, variant
                )
            except UnsupportedSchema as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _fill_object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties: dict[str, Schema] = schema.get("properties", {})
        required = schema.get("required", [])
        names = [name for name in properties if name in required or depth <= DEPTH_OF_OPTIONALS]
        result: dict[str, Any] = {}
        for name in [*names, *(name for name in required if name not in properties)]:
            part = properties.get(name, schema.get("additionalProperties", True))
            try:
                result[name] = self.fill(part, name, depth + 1, 0)
            except UnsupportedSchema:
                if name in required:
                    raise
        extra = 0
        while len(result) < schema.get("minProperties", 0):
            extra += 1
            key, part = f"key{extra}", schema.get("additionalProperties", True)
            for pattern, value in schema.get("patternProperties", {}).items():
                key, part = string_for(pattern, min_length=extra), value
            result[key] = self.fill(part, key, depth + 1, 0)
            if extra > 1000:
                raise UnsupportedSchema("minProperties cannot be reached.", keyword="minProperties")
        most = schema.get("maxProperties", len(result))
        for name in [name for name in reversed(result) if name not in required]:
            if len(result) > most:
                del result[name]
        return result

    def _fill_array(self, schema: dict[str, Any], name: str, depth: int) -> list[Any]:
        prefix: list[Schema] = schema.get("prefixItems", [])
        items: Schema = schema.get("items", True)
        least = schema.get("minItems", 0)
        wanted = max(least, len(prefix), 1 if depth <= DEPTH_OF_OPTIONALS and items is not False else 0)
        wanted = min(wanted, schema.get("maxItems", wanted))
        result: list[Any] = []
        for index in range(wanted):
            part = prefix[index] if index < len(prefix) else items
            try:
                result.append(self._fill_item(part, name, depth, result if schema.get("uniqueItems") else None))
            except UnsupportedSchema:
                if index < least:
                    raise
                break
        return result

    def _fill_item(self, schema: Schema, name: str, depth: int, others: list[Any] | None) -> Any:
        """An item that differs from `others`, if these are given."""
        if others is None:
            return self.fill(schema, name, depth + 1, 0)
        for variant in range(len(others), len(others) + 100):
            value = self.fill(schema, name, depth + 1, variant)
            if value not in others:
                return value
        raise UnsupportedSchema(f"{len(others) + 1} different items were not found.", keyword="uniqueItems")

    def _fill_string(self, schema: dict[str, Any], name: str, variant: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if "pattern" in schema:
            return string_for(schema["pattern"], min_length=max(least, variant))
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        text = self._hints.take_string(name.replace("_", " "))
        if variant:
            text = f"{text} {variant}"
        text = text.ljust(least, ".")
        return text if most is None else text[: max(most, 0)]

    def _fill_number(self, schema: dict[str, Any], is_integer: bool, variant: int) -> float | int:
        step = schema.get("multipleOf", 1 if is_integer else 0)
        low, high = _bounds(schema, step if is_integer else step or 1)
        hint = self._hints.take_number(is_integer)
        value = hint if hint is not None and low <= hint <= high else max(low, min(1, high))
        value += variant * (step or 1)
        if step:
            value = math.ceil(value / step) * step
            if value > high:
                value = math.floor(high / step) * step
        return int(value) if is_integer or value == int(value) else value


def _bounds(schema: dict[str, Any], step: float) -> tuple[float, float]:
    """The least and the greatest value; an exclusive bound is moved by `step`, or by half a narrow interval."""
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    open_low, open_high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if open_low is not None and open_high is not None and open_high - open_low <= step:
        middle = (open_low + open_high) / 2
        return middle, middle
    if open_low is not None:
        low = max(low, open_low + step)
    if open_high is not None:
        high = min(high, open_high - step)
    return low, high


def _kind(schema: dict[str, Any], variant: int) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [entry for entry in kind if entry != "null"] or ["null"]
        return str(kinds[variant % len(kinds)])
    if kind is not None:
        return str(kind)
    if _has(schema, ("properties", "required", "additionalProperties", "minProperties", "patternProperties")):
        return "object"
    if _has(schema, ("items", "prefixItems", "minItems", "maxItems")):
        return "array"
    if _has(schema, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")):
        return "number"
    return "string"


def _has(schema: dict[str, Any], keywords: Iterable[str]) -> bool:
    return any(keyword in schema for keyword in keywords)


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both schemas at once, as far as filling is concerned: the tighter bound, all properties, all required."""
    merged = {**first, **second}
    for key in first.keys() & second.keys():
        one, other = first[key], second[key]
        if key in ("properties", "patternProperties", "$defs"):
            merged[key] = {**one, **other}
        elif key == "required":
            merged[key] = list(dict.fromkeys([*one, *other]))
        elif key == "enum":
            merged[key] = [value for value in one if value in other]
        elif key.startswith(("min", "exclusiveMin")):
            merged[key] = max(one, other)
        elif key.startswith(("max", "exclusiveMax")):
            merged[key] = min(one, other)
        elif key in ("allOf", "anyOf", "oneOf"):
            merged["allOf"] = [*merged.get("allOf", []), {key: one}]
    return merged


def _is_null(schema: Schema) -> bool:
    return isinstance(schema, dict) and (schema.get("type") == "null" or schema.get("const", "") is None)


def _weight(schema: Schema) -> int:
    return len(json.dumps(schema)) + (10_000 if "$ref" in json.dumps(schema) else 0)

"""One schema a keyword, with an instance that it admits and one that only this keyword rules out."""

from __future__ import annotations

from typing import Any

Case = tuple[str, dict[str, Any], Any, Any]  # keyword, schema, valid, invalid

CASES: list[Case] = [
    ("type", {"type": "integer"}, 1, "a"),
    ("type list", {"type": ["integer", "null"]}, None, "a"),
    ("enum", {"enum": ["a", 1, None]}, 1, "b"),
    ("const", {"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    ("required", {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}, {"a": 1}, {"b": 1}),
    (
        "additionalProperties false",
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"a": 1},
        {"c": 1},
    ),
    (
        "additionalProperties schema",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"a": 1},
        {"a": "x"},
    ),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        {"xa": 1},
        {"xa": "b"},
    ),
    (
        "minProperties",
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
        {"a": 1, "b": 2},
        {"a": 1},
    ),
    (
        "maxProperties",
        {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1},
        {"a": 1},
        {"a": 1, "b": 2},
    ),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}, {"a": 1}, {"b": 1}),
    (
        "dependentRequired",
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        {"a": 1, "b": 1},
        {"a": 1},
    ),
    ("items", {"type": "array", "items": {"type": "integer"}}, [1], ["a"]),
    (
        "prefixItems",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [1, "a"],
        ["a", 1],
    ),
    ("minItems", {"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 2], [1]),
    ("maxItems", {"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [1], [1, 2]),
    ("uniqueItems", {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1, 2], [1, 1]),
    ("contains", {"type": "array", "contains": {"const": 1}}, [1], [2]),
    ("minLength", {"type": "string", "minLength": 3}, "abc", "ab"),
    ("maxLength", {"type": "string", "maxLength": 3}, "abc", "abcd"),
    ("pattern", {"type": "string", "pattern": "^[a-c]+$"}, "abc", "abd"),
    ("pattern unanchored", {"type": "string", "pattern": "b"}, "abc", "ac"),
    ("pattern look-ahead", {"type": "string", "pattern": "^(?=a)[a-z]+$"}, "ab", "ba"),
    ("pattern and length", {"type": "string", "pattern": "^[a-c]+$", "maxLength": 2}, "ab", "abc"),
    ("format date-time", {"type": "string", "format": "date-time"}, "2026-01-31T10:00:00Z", "2026-01-32T10:00:00Z"),
    ("format uuid", {"type": "string", "format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123"),
    ("format unknown", {"type": "string", "format": "iban"}, "DE89370400440532013000", "x"),
    ("minimum", {"type": "integer", "minimum": 5}, 7, 3),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 5}, 4, 5),
    ("minimum of a number", {"type": "number", "minimum": 0.5}, 0.75, 0.25),
    ("multipleOf", {"type": "integer", "multipleOf": 7}, 14, 15),
    ("anyOf", {"anyOf": [{"type": "integer"}, {"const": "a"}]}, "a", "b"),
    ("oneOf exclusive", {"oneOf": [{"type": "integer"}, {"type": "null"}]}, 1, "a"),
    ("oneOf overlapping", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1.5, 1),
    (
        "allOf",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]
        },
        {"a": 1, "b": 2},
        {"a": 1},
    ),
    ("not", {"type": "string", "not": {"const": "a"}}, "b", "a"),
    ("if then", {"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 2}}, 6, 7),
    ("$ref", {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, 1, "a"),
    (
        "$ref recursive",
        {
            "type": "object",
            "properties": {"c": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["c"],
            "additionalProperties": False,
        },
        {"c": [{"c": []}]},
        {"c": [{"d": []}]},
    ),
    ("$ref with siblings", {"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer"}}}, 4, 6),
]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PERSON_VALUE = {"name": "Ada Lovelace", "age": 36, "tags": ["mathematics", "poetry", "engines of every kind"]}


def wide(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """An object of many nested ones with enumerations, as generated clients send them."""
    inner = {
        "type": "object",
        "properties": {
            "kind": {"enum": [f"kind_{n}" for n in range(12)]},
            "note": {"type": "string", "maxLength": 40},
            "value": {"type": "number"},
        },
        "required": ["kind", "note", "value"],
        "additionalProperties": False,
    }
    names = [f"field_{n}" for n in range(count)]
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, inner),
        "required": names,
        "additionalProperties": False,
    }
    return schema, {name: {"kind": "kind_7", "note": "some words about it", "value": 1.25} for name in names}


TIMED: list[tuple[str, dict[str, Any], Any]] = [
    ("person", PERSON, PERSON_VALUE),
    ("any object", {"type": "object"}, {"a": [1, {"b": "some text in a string"}], "c": None, "d": PERSON_VALUE}),
    ("40 nested objects", *wide(40)),
    (
        "bounded strings and patterns",
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}$"},
                "summary": {"type": "string", "minLength": 10, "maxLength": 400},
                "when": {"type": "string", "format": "date-time"},
            },
            "required": ["id", "summary", "when"],
            "additionalProperties": False,
        },
        {"id": "ABC-123456", "summary": "Words of no great weight, " * 8, "when": "2026-01-31T10:00:00Z"},
    ),
]

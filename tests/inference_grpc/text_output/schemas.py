"""Schemas of many shapes; each must be compiled strictly and give valid instances only."""

from __future__ import annotations

from typing import Any


def an_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


SCHEMAS: dict[str, dict[str, Any]] = {
    "any": {},
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "two types": {"type": ["integer", "null"]},
    "enum of strings": {"enum": ["red", "green", 'a "quoted" one', ""]},
    "enum of all sorts": {"enum": [1, 2.5, None, True, "x", [1], {"a": 1}]},
    "const": {"const": {"kind": "fixed", "list": [1, 2]}},
    "empty object": an_object({}, additionalProperties=False),
    "free object": {"type": "object"},
    "flat object": an_object({"name": {"type": "string"}, "age": {"type": "integer"}}, additionalProperties=False),
    "object not closed by its schema": an_object({"a": {"type": "integer"}}),
    "optional properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
        "required": ["b"],
    },
    "all optional": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
    "additional of a type": an_object({"a": {"type": "integer"}}, additionalProperties={"type": "boolean"}),
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3},
    "required but undescribed": {"type": "object", "required": ["z"]},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "unicode names": an_object(
        {"größe": {"type": "integer"}, "名前": {"enum": ["太郎", "花子"]}, "😀": {"type": "null"}}
    ),
    "names to escape": an_object({'a"b': {"type": "null"}, "c/d~e": {"type": "null"}, "new\nline": {"type": "null"}}),
    "nested": an_object({"a": an_object({"b": an_object({"c": {"type": "array", "items": {"type": "boolean"}}})})}),
    "array": {"type": "array", "items": {"type": "integer"}},
    "array bounded": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "array of objects": {"type": "array", "items": an_object({"id": {"type": "integer"}}), "minItems": 1},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    "empty array": {"type": "array", "maxItems": 0},
    "length": {"type": "string", "minLength": 3, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}/\\w$"},
    "pattern somewhere": {"type": "string", "pattern": "b+c", "maxLength": 12},
    "pattern with alternatives": {"type": "string", "pattern": "^(cat|dog)s?$"},
    "date-time": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": {"type": "string", "format": "email", "maxLength": 30},
    "range": {"type": "integer", "minimum": -3, "maximum": 12},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 4},
    "range of numbers": {"type": "number", "minimum": 0, "maximum": 1},
    "open range": {"type": "number", "exclusiveMinimum": 0.5},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100},
    "any of": {"anyOf": [{"type": "string", "maxLength": 5}, an_object({"n": {"type": "number"}}), {"type": "null"}]},
    "nullable property": an_object({"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}),
    "one of with a tag": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {
            "cat": an_object({"kind": {"const": "cat"}, "lives": {"type": "integer"}}),
            "dog": an_object({"kind": {"const": "dog"}, "name": {"enum": ["Rex"]}}),
        },
    },
    "one of many by a tag": {
        "oneOf": [an_object({"op": {"const": f"op_{n}"}, "n": {"type": "integer"}}) for n in range(100)]
    },
    "one of, recursive": {
        "$ref": "#/$defs/list",
        "$defs": {"list": an_object({"next": {"oneOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}})},
    },
    "one of beside any of": {
        "oneOf": [{"type": "integer"}, {"type": "null"}],
        "anyOf": [{"const": 1}, {"const": 2}, {"const": "a"}],
    },
    "all of": {
        "allOf": [an_object({"a": {"type": "integer"}}), an_object({"b": {"type": "boolean"}})],
        "unevaluatedProperties": True,
    },
    "reference": {"$ref": "#/$defs/point", "$defs": {"point": an_object({"x": {"type": "number"}})}},
    "old definitions": an_object({"p": {"$ref": "#/definitions/p"}}, definitions={"p": {"type": "integer"}}),
    "reference to a property": an_object({"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a"}}),
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": an_object(
                {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}
            )
        },
    },
    "recursive tree": an_object({"children": {"type": "array", "items": {"$ref": "#"}}}),
    "annotated": an_object(
        {"a": {"type": "integer", "title": "A", "description": "…", "default": 1, "examples": [2], "x-order": 1}},
        **{"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s"},
    ),
    "as pydantic writes it": {
        "$defs": {
            "Color": {"enum": ["red", "green"], "title": "Color", "type": "string"},
            "Part": {
                "properties": {
                    "color": {"$ref": "#/$defs/Color"},
                    "size": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None, "title": "Size"},
                },
                "required": ["color"],
                "title": "Part",
                "type": "object",
            },
        },
        "properties": {
            "parts": {"items": {"$ref": "#/$defs/Part"}, "title": "Parts", "type": "array"},
            "main": {"$ref": "#/$defs/Part", "description": "The first one"},
        },
        "required": ["parts", "main"],
        "title": "Thing",
        "type": "object",
    },
}

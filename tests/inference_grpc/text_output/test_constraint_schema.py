"""A keyword that is not enforced is refused by name and place, or left out where nobody asked for strictness."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_grpc.core.request import Constraint, Tool, ToolChoice
from inference_grpc.errors import UnsupportedSchema
from inference_grpc.text.constraint_schema import (
    ANNOTATIONS,
    ENFORCED,
    EXACT_FORMATS,
    FORMATS,
    MAX_DEPTH,
    parse_schema,
    relaxed_schema,
    strict_schema,
)
from inference_grpc.text.output_parser import make_parser

NESTED_TAG = {"type": "object", "properties": {"kind": {"const": 1}}, "required": ["kind"]}
NESTED = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "format": "iban"}}}}


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        ({"not": {"type": "string"}}, "not", "#/not"),
        ({"if": {}, "then": {}}, "if", "#/if"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "#/uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains", "#/contains"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames", "#/propertyNames"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "#/dependentRequired"),
        ({"$dynamicRef": "#a"}, "$dynamicRef", "#/$dynamicRef"),
        ({"type": "string", "nullable": True}, "nullable", "#/nullable"),
        ({"type": "strnig"}, "type", "#/type"),
        ({"type": []}, "type", "#/type"),
        ({"typ": "string"}, "typ", "#/typ"),
        ({"enum": []}, "enum", "#/enum"),
        (NESTED, "format", "#/properties/a/items/format"),
        ({"properties": {"a/b": {"pattern": "(?=x)"}}}, "pattern", "#/properties/a~1b/pattern"),
        ({"pattern": r"\bword\b"}, "pattern", "#/pattern"),
        ({"anyOf": [{}, {"$ref": "https://example.com/x"}]}, "$ref", "#/anyOf/1/$ref"),
        ({"$ref": "#/$defs/none"}, "$ref", "#/$ref"),
        ({"items": [{"type": "string"}]}, "items", "#/items"),
        ({"properties": {"a": 1}}, "a", "#/properties/a"),
        ({"required": [1]}, "required", "#/required"),
        ({"minLength": -1}, "minLength", "#/minLength"),
        ({"minimum": "1"}, "minimum", "#/minimum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "#/oneOf"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": NESTED_TAG}}, "oneOf", "#/oneOf"),
        ({"anyOf": [{"type": "integer", "minimum": 5, "maximum": 1}]}, "minimum", "#/anyOf/0/minimum"),
        ({"anyOf": [{"type": "array", "minItems": 5, "maxItems": 1}]}, "minItems", "#/anyOf/0/minItems"),
        (
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2},
            "minProperties",
            "#/minProperties",
        ),
    ],
)
def test_an_unsupported_keyword_is_refused_by_name_and_path(schema, keyword, path):
    with pytest.raises(UnsupportedSchema) as refusal:
        strict_schema(schema)
    assert refusal.value.fields["keyword"] == keyword
    assert refusal.value.fields["path"] == path
    assert keyword in refusal.value.message


@pytest.mark.parametrize("schema", [False, {"allOf": [{"type": "string"}, {"type": "integer"}]}])
def test_a_schema_without_instances_is_refused(schema):
    with pytest.raises(UnsupportedSchema, match="cannot be enforced"):
        strict_schema(schema)


def test_size_and_depth_are_bounded():
    deep: dict[str, object] = {"type": "string"}
    for _ in range(MAX_DEPTH + 1):
        deep = {"items": deep}
    with pytest.raises(UnsupportedSchema) as refusal:
        strict_schema(deep)
    assert refusal.value.fields["limit"] == str(MAX_DEPTH)
    with pytest.raises(UnsupportedSchema, match="more than 2000 schemas"):
        strict_schema({"properties": {f"p{n}": {} for n in range(2000)}})
    with pytest.raises(UnsupportedSchema, match="larger than"):
        parse_schema(json.dumps({"description": "x" * 300_000}))


def test_annotations_are_accepted_and_do_not_reach_the_compiler():
    annotated = dict.fromkeys(ANNOTATIONS, "x") | {"x-anything": {"a": 1}, "type": "string"}
    assert strict_schema(annotated) == {"type": "string"}


def test_no_keyword_is_both_enforced_and_an_annotation():
    assert not ENFORCED.keys() & set(ANNOTATIONS)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_the_table_can_be_enforced(name):
    cleaned = strict_schema({"type": "string", "format": name})
    assert cleaned["format" if name not in EXACT_FORMATS else "pattern"]


def test_objects_are_closed_unless_schemas_are_composed():
    parts = {"properties": {"a": {"type": "integer"}}}
    assert strict_schema(parts)["additionalProperties"] is False
    assert strict_schema({"anyOf": [parts, {"type": "null"}]})["anyOf"][0]["additionalProperties"] is False
    assert "additionalProperties" not in strict_schema({"allOf": [parts, {"required": ["b"]}]})["allOf"][0]
    assert "additionalProperties" not in strict_schema({**parts, "required": ["b"]})
    assert strict_schema({**parts, "additionalProperties": True})["additionalProperties"] is True


def test_a_relaxed_schema_keeps_what_can_be_enforced():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "iban", "maxLength": 3},
            "b": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            "c": {"not": {"type": "string"}},
        },
        "required": ["a"],
        "dependentRequired": {"a": ["b"]},
    }
    assert relaxed_schema(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3},
            "b": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
            "c": {},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("schema", [{"properties": 1}, {"properties": {"a": None}}, {"allOf": [False]}, [], None])
def test_what_cannot_be_relaxed_is_any_object(schema):
    assert relaxed_schema(schema)["type"] == "object" if schema != {"properties": 1} else relaxed_schema(schema) == {}


def test_a_strict_tool_is_refused_by_name_and_a_loose_one_is_not(compiler):
    parameters = {"type": "object", "properties": {"a": {"type": "string", "format": "iban"}}}
    choice = ToolChoice(mode="required")
    with pytest.raises(UnsupportedSchema, match="'pay'") as refusal:
        compiler.compile(None, [Tool("pay", "", parameters, strict=True)], choice, "hermes")
    assert refusal.value.fields == {"keyword": "format", "path": "#/properties/a/format", "tool": "pay"}
    assert compiler.compile(None, [Tool("pay", "", parameters)], choice, "hermes") is not None


def test_a_refusal_names_the_limit_the_library_met(compiler):
    schema = {"type": "integer", "minimum": -1e300, "maximum": 1e300}
    with pytest.raises(UnsupportedSchema):
        compiler.compile(Constraint("json_schema", json.dumps(schema)), [], ToolChoice(), "chatml")


WORDS = st.sampled_from(
    [*ENFORCED, *ANNOTATIONS, "not", "a", "b", "#", "#/$defs/a", "string", "object", "^a$", "date", "x<y"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=JSON)
def test_any_json_as_a_schema_is_taken_or_refused(compiler, schema):
    try:
        strict_schema(schema)
    except UnsupportedSchema as refusal:
        assert refusal.message  # noqa: PT017
    relaxed_schema(schema)
    if isinstance(schema, dict):
        for family in ("qwen3", "hermes"):
            for is_strict in (False, True):
                tool = Tool("f", "", schema, strict=is_strict)
                try:
                    compiler.compile(None, [tool], ToolChoice(mode="required"), family)
                except UnsupportedSchema as refusal:
                    assert is_strict, refusal  # noqa: PT017
                make_parser(family, [tool], ToolChoice(), False, "").feed(
                    "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"
                )

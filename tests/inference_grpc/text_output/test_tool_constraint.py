"""Forced calls, in each family's own syntax, parse back into valid calls whatever tokens are drawn."""

from __future__ import annotations

import json

import jsonschema
import pytest

from inference_grpc.core.request import Constraint, Tool, ToolChoice
from inference_grpc.errors import InvalidRequest, UnsupportedSchema
from inference_grpc.text.constraint_schema import FORMATS
from inference_grpc.text.constraint_xml import whole_pattern
from inference_grpc.text.families import Family
from tests.inference_grpc.text_output.parsing import TOOLS, parse

FAMILIES: list[Family] = ["qwen3", "hermes", "chatml"]
CLOSING = {"qwen3": "\n</parameter>", "hermes": '"', "chatml": '"'}
FORMAT_CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER

RICH = Tool(
    "rich",
    "Every kind of parameter",
    {
        "type": "object",
        "$defs": {"size": {"type": "integer", "minimum": 1, "maximum": 9}, "word": {"enum": ["ja", "nein"]}},
        "properties": {
            "free": {"type": "string"},
            "short": {"type": "string", "minLength": 2, "maxLength": 5},
            "code": {"type": "string", "pattern": "^[A-Z]{2}\\d$"},
            "color": {"type": "string", "enum": ["red", "dark blue", ""]},
            "fixed": {"const": "x<y"},
            "day": {"type": "string", "format": "date"},
            "word": {"$ref": "#/$defs/word"},
            "size": {"$ref": "#/$defs/size"},
            "maybe": {"type": ["string", "null"], "maxLength": 4},
            "either": {"anyOf": [{"enum": ["auto"]}, {"type": "string", "pattern": "^[0-9]{2}$"}]},
            "number": {"type": "number"},
            "flag": {"type": "boolean"},
            "list": {"type": "array", "items": {"$ref": "#/$defs/size"}, "maxItems": 3},
            "nested": {
                "type": "object",
                "properties": {"größe": {"enum": ["ß"]}},
                "required": ["größe"],
                "additionalProperties": False,
            },
        },
        "required": ["free", "code", "color", "word", "size", "either", "flag", "nested"],
        "additionalProperties": False,
    },
    strict=True,
)
BY_NAME = {tool.name: tool for tool in [*TOOLS, RICH]}


def accept_all(matcher, tokens) -> None:
    for token in tokens:
        matcher.accept(token)


def check(message) -> None:
    assert message.text == ""
    for call in message.calls:
        schema = BY_NAME[call.name].parameters
        jsonschema.Draft202012Validator(schema, format_checker=FORMAT_CHECKER).validate(call.arguments)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(6))
def test_required_makes_valid_calls(compiler, walk, family, seed):
    choice = ToolChoice(mode="required")
    compiled = compiler.compile(None, TOOLS, choice, family)
    message = parse(walk(compiled, seed, closing=CLOSING[family]), family=family, choice=choice)
    assert message.calls
    check(message)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(8))
def test_a_named_tool_is_called_once_with_arguments_of_its_schema(compiler, walk, family, seed):
    choice = ToolChoice(mode="named", names=["rich"])
    tools = [*TOOLS, RICH]
    compiled = compiler.compile(None, tools, choice, family)
    text = walk(compiled, seed, free_tokens=60, closing=CLOSING[family])
    message = parse(text, family=family, tools=tools, choice=choice)
    assert [call.name for call in message.calls] == ["rich"]
    check(message)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_parallel_calls_there_is_one(compiler, walk, family):
    choice = ToolChoice(mode="required", parallel=False)
    compiled = compiler.compile(None, TOOLS, choice, family)
    for seed in range(4):
        assert len(parse(walk(compiled, seed, closing=CLOSING[family]), family=family, choice=choice).calls) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_allowed_lets_text_pass_and_holds_calls_to_the_named_tools(compiler, tokenizer, allowed, family):
    choice = ToolChoice(mode="allowed", names=["ping"])
    compiled = compiler.compile(None, TOOLS, choice, family)
    matcher = compiled.new_matcher()
    for token in tokenizer.encode("Just text, <tool and {brackets}."):
        matcher.accept(token)
    assert matcher.is_valid()
    call = {
        "qwen3": "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "hermes": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    }.get(family, '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    for token in tokenizer.encode(call):
        matcher.accept(token)
    assert matcher.is_valid()
    other = tokenizer.encode("\n" + call.replace("ping", "get_weather"))
    with pytest.raises(ValueError, match="does not fit"):
        accept_all(matcher, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_strict_tool_is_held_to_its_schema_in_free_text(compiler, walk, family):
    choice = ToolChoice()
    compiled = compiler.compile(None, [RICH], choice, family)
    matcher = compiled.new_matcher()
    assert matcher.is_valid()
    for seed in range(3):
        parse(walk(compiled, seed, closing=CLOSING[family]), family=family, tools=[RICH])


@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_schema_and_tools_the_output_is_one_or_the_other(compiler, tokenizer, family):
    schema = Constraint("json_schema", json.dumps({"enum": ["yes"]}))
    compiled = compiler.compile(schema, TOOLS, ToolChoice(), family)
    body = "<function=ping>\n</function>" if family == "qwen3" else '{"name": "ping", "arguments": {}}'
    for text in ('"yes"', f"<tool_call>\n{body}\n</tool_call>"):
        matcher = compiled.new_matcher()
        for token in tokenizer.encode(text):
            matcher.accept(token)
        assert matcher.is_valid()
    with pytest.raises(ValueError, match="does not fit"):
        compiled.new_matcher().accept(tokenizer.encode("x")[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_reasoning_comes_before_a_forced_call(compiler, tokenizer, family):
    choice = ToolChoice(mode="named", names=["ping"])
    compiled = compiler.compile(None, TOOLS, choice, family, reasoning="open")
    matcher = compiled.new_matcher()
    body = "<function=ping>\n</function>" if family == "qwen3" else '{"name": "ping", "arguments": {}}'
    text = f"I should ping.\n</think>\n\n<tool_call>\n{body}\n</tool_call>"
    for token in tokenizer.encode(text):
        assert not matcher.is_done()
        matcher.accept(token)
    assert matcher.is_done()
    message = parse(text, family=family, choice=choice, prompt_suffix="<think>\n")
    assert (message.reasoning, message.text, len(message.calls)) == ("I should ping.", "", 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_required_call_may_be_held_to_some_of_the_tools(compiler, walk, family):
    third = Tool("third", "", {"type": "object", "properties": {}})
    choice = ToolChoice(mode="required", names=["ping", "third"], parallel=False)
    compiled = compiler.compile(None, [*TOOLS, third], choice, family)
    called = set()
    for seed in range(12):
        message = parse(walk(compiled, seed, closing=CLOSING[family]), family=family, tools=[*TOOLS, third])
        called |= {call.name for call in message.calls}
        assert len(message.calls) == 1
    assert called == {"ping", "third"}


def test_a_choice_without_its_tool_is_refused(compiler):
    for choice in (ToolChoice(mode="required"), ToolChoice(mode="named", names=["gone"])):
        with pytest.raises(InvalidRequest) as refusal:
            compiler.compile(None, [] if choice.mode == "required" else TOOLS, choice, "hermes")
        assert refusal.value.fields == {"param": "tool_choice"}


def test_a_large_set_of_tools_is_compiled(compiler, walk):
    tools = [Tool(f"tool_{n}", "d" * 500, RICH.parameters) for n in range(40)]
    for family in FAMILIES:
        compiled = compiler.compile(None, tools, ToolChoice(mode="required", parallel=False), family)
        assert "tool_" in walk(compiled, 1, closing=CLOSING[family])


# -- the qwen3 family's raw strings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_raw_strings_are_valid_ones(compiler, walk, name):
    tool = Tool("f", "", {"properties": {"a": {"type": "string", "format": name}}, "required": ["a"]}, strict=True)
    compiled = compiler.compile(None, [tool], ToolChoice(mode="named", names=["f"]), "qwen3")
    for seed in range(4):
        call = parse(walk(compiled, seed, free_tokens=80), tools=[tool]).calls[0]
        jsonschema.Draft202012Validator(tool.parameters, format_checker=FORMAT_CHECKER).validate(call.arguments)


@pytest.mark.parametrize(
    ("pattern", "whole"),
    [
        ("^ab$", "(?:ab)"),
        ("^ab", "(?:ab)(?s:.*)"),
        ("ab$", "(?s:.*)(?:ab)"),
        ("a|b", "(?s:.*)(?:a|b)(?s:.*)"),
        ("^(a|b)$", "(?:(a|b))"),
        (r"^a\$", r"(?:a\$)(?s:.*)"),
        (r"^a\\$", r"(?:a\\)"),
        ("^[$^|]+$", "(?:[$^|]+)"),
        ("^a|b$", None),
        ("(^a)", None),
    ],
)
def test_a_search_pattern_becomes_one_for_the_whole_text(pattern, whole):
    assert whole_pattern(pattern) == whole


@pytest.mark.parametrize(
    ("parameters", "keyword"),
    [
        ({"allOf": [{"properties": {"a": {}}}]}, "allOf"),
        ({"properties": {"a": {}}, "minProperties": 1}, "minProperties"),
        ({"properties": {"a>b": {"type": "string"}}}, "properties"),
        ({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "pattern"),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}, "$ref"),
    ],
)
def test_what_the_xml_syntax_cannot_hold_is_refused_for_strict_tools_only(compiler, parameters, keyword):
    choice = ToolChoice(mode="required")
    assert compiler.compile(None, [Tool("f", "", parameters)], choice, "qwen3") is not None
    with pytest.raises(UnsupportedSchema) as refusal:
        compiler.compile(None, [Tool("f", "", parameters, strict=True)], choice, "qwen3")
    assert refusal.value.fields["keyword"] == keyword
    assert compiler.compile(None, [Tool("f", "", parameters, strict=True)], choice, "hermes") is not None

"""Builds the grammar of a whole output: reasoning if any, then the answer, or tool calls in the family's own syntax.

The language is llguidance's dialect of Lark; JSON Schemas stand in it as they are.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance.gbnf_to_lark import any_to_lark

from inference_grpc.core.request import Constraint, Tool, ToolChoice
from inference_grpc.errors import InvalidRequest, UnsupportedSchema
from inference_grpc.text.constraint_rules import Rules, json_value, literal, until
from inference_grpc.text.constraint_schema import (
    MAX_SCHEMA_BYTES,
    Schema,
    ascii_classes,
    parse_schema,
    relaxed_schema,
    strict_schema,
)
from inference_grpc.text.constraint_xml import add_xml_call
from inference_grpc.text.families import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN, Family, ReasoningStart
from inference_grpc.text.output_parser import offered_tools
from inference_grpc.text.output_parser.values import encode

# A weak model would call for ever; one that never learnt to call makes a single call where it has to.
MAX_CALLS: dict[Family, int] = {"qwen3": 16, "hermes": 16, "chatml": 1}
MAX_GRAMMAR_BYTES = 64 * 1024

_ANY_OBJECT: Schema = {"type": "object"}


def needs_grammar(constraint: Constraint | None, tools: list[Tool], tool_choice: ToolChoice) -> bool:
    """Whether anything is asked for. In free text a call is held to its schema only if the tool or choice says so."""
    offered = offered_tools(tools, tool_choice)
    return (
        constraint is not None
        or _must_call(tool_choice)
        or (bool(offered) and (tool_choice.mode == "allowed" or bool(tool_choice.names)))
        or any(tool.strict for tool in offered)
    )


def build_grammar(
    constraint: Constraint | None,
    tools: list[Tool],
    tool_choice: ToolChoice,
    family: Family,
    reasoning: ReasoningStart = "none",
) -> str:
    """The grammar of the output, where there is one, as llguidance takes it.

    Raises `InvalidRequest` for a choice of tools that are not there, `UnsupportedSchema` for what cannot be enforced.
    """
    offered = offered_tools(tools, tool_choice)
    must_call = _must_call(tool_choice)
    if must_call and not offered:
        raise InvalidRequest("The tool choice asks for a call, and no such tool is given.", param="tool_choice")
    rules = Rules()
    grammars: list[dict[str, str]] = []
    _add_start(rules, reasoning)
    if offered:
        _add_calls(rules, offered, family)
    if must_call:
        rules.add("body", _calls(tool_choice, family))
    elif constraint is not None:
        rules.add("body", _answer(constraint, grammars))
        if offered:
            rules.add("body", _calls(tool_choice, family))
    else:
        _add_guarded_text(rules, tool_choice)
    return json.dumps({"grammars": [{"name": "output", "lark_grammar": rules.text()}, *grammars]})


def _must_call(tool_choice: ToolChoice) -> bool:
    return tool_choice.mode in ("required", "named")


def _add_start(rules: Rules, reasoning: ReasoningStart) -> None:
    if reasoning == "none":
        rules.add("start", "body")
        return
    thinking = "thinking gap?"
    rules.add("start", f"{thinking} body" if reasoning == "open" else f"({literal(THINK_OPEN)} {thinking})? body")
    rules.add("thinking[lazy]", until(THINK_CLOSE))
    rules.add("gap", r"/\n\n?/")


def _calls(tool_choice: ToolChoice, family: Family) -> str:
    call = literal(CALL_OPEN) + " call"
    more = MAX_CALLS[family] - 1
    if tool_choice.mode == "named" or not tool_choice.parallel or not more:
        return call
    return f"{call} ({literal(chr(10))} {call}){{0,{more}}}"


def _add_guarded_text(rules: Rules, tool_choice: ToolChoice) -> None:
    """Any text; but from `<tool_call>` on, a call."""
    rules.add("body", "(opened call)* TEXT" if tool_choice.parallel else "TEXT | opened call")
    rules.add("opened[lazy]", until(CALL_OPEN))
    rules.add("TEXT", "/(?s:.*)/")


def _answer(constraint: Constraint, grammars: list[dict[str, str]]) -> str:
    match constraint.kind:
        case "json_object":
            return json_value(_ANY_OBJECT)
        case "json_schema":
            return json_value(parse_schema(constraint.text))
        case "regex":
            _check_size(constraint.text, "regex")
            return f"/{ascii_classes(constraint.text)}/"
        case "grammar":
            _check_size(constraint.text, "grammar")
            try:
                grammars.append({"name": "answer", "lark_grammar": any_to_lark(constraint.text)})
            except Exception as error:  # the converter raises just this for some mistakes
                raise UnsupportedSchema(f"The grammar cannot be read: {error}", keyword="grammar") from error
            return "@answer"


def _add_calls(rules: Rules, tools: list[Tool], family: Family) -> None:
    """What may stand behind `<tool_call>`, one alternative a tool."""
    for index, tool in enumerate(tools):
        schema = arguments_schema(tool)
        if family == "qwen3":
            add_xml_call(rules, tool, schema, f"call_{index}")
        else:
            head = literal(f'\n{{"name": {encode(tool.name)}, "arguments": ')
            rules.add(f"call_{index}", f"{head} {json_value(schema)} {literal('}' + chr(10) + CALL_CLOSE)}")
        rules.add("call", f"call_{index}")


def arguments_schema(tool: Tool) -> Schema:
    """What a call's arguments are held to: the tool's schema, exactly if it is strict, else as far as it goes."""
    schema: Any = tool.parameters or {"properties": {}, "additionalProperties": False}
    try:
        size = len(json.dumps(schema))
    except (ValueError, RecursionError) as error:
        raise _bad_tool(tool, f"are no JSON Schema: {error}") from error
    if size > MAX_SCHEMA_BYTES:
        raise _bad_tool(tool, f"are larger than {MAX_SCHEMA_BYTES} bytes.", limit=MAX_SCHEMA_BYTES)
    if tool.strict and schema.get("type", "object") != "object":
        raise _bad_tool(tool, f"have the type {schema['type']!r}; arguments are an object.", path="#/type")
    schema = {**schema, "type": "object"}
    if not tool.strict:
        return relaxed_schema(schema)
    try:
        return strict_schema(schema)
    except UnsupportedSchema as error:
        raise UnsupportedSchema(f"Tool {tool.name!r}: {error.message}", **error.fields, tool=tool.name) from error


def _bad_tool(tool: Tool, problem: str, **fields: object) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"The parameters of tool {tool.name!r} {problem}", keyword="parameters", tool=tool.name, **fields
    )


def _check_size(text: str, keyword: str) -> None:
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise UnsupportedSchema(
            f"The {keyword} is larger than {MAX_GRAMMAR_BYTES} bytes.", keyword=keyword, limit=MAX_GRAMMAR_BYTES
        )

"""The grammar of a call in the qwen3 family's syntax, where strings stand as they are and all else is JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from inference_grpc.core.request import Tool
from inference_grpc.errors import InvalidRequest, UnsupportedSchema
from inference_grpc.text.constraint_rules import Rules, json_value, literal, until
from inference_grpc.text.constraint_schema import TIME, Schema
from inference_grpc.text.families import CALL_CLOSE
from inference_grpc.text.output_parser.qwen3 import FUNCTION_CLOSE, FUNCTION_OPEN, PARAMETER_CLOSE, PARAMETER_OPEN
from inference_grpc.text.output_parser.values import resolve, types_of

_VALUE_END = f"\n{PARAMETER_CLOSE}\n"
_FREE_TEXT = "free_text"
_WITHOUT_TAG = r"~/(?s:.*)<\/parameter>(?s:.*)/"

# Arguments are written one by one here, so that these, which speak of all together, have no place to be enforced.
_OF_THE_WHOLE = (
    "allOf", "anyOf", "oneOf", "enum", "const", "patternProperties", "minProperties", "maxProperties"
)  # fmt: skip

_LABEL = r"[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
# Each admits only valid texts, if not all of them: addresses are written out, a URI is one of the web.
FORMAT_PATTERNS = {
    "time": TIME,
    "duration": r"P([0-9]{1,4}W|[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H)?[0-9]{1,4}M([0-9]{1,4}S)?)",
    "email": rf"[a-zA-Z0-9_%+-]{{1,32}}(\.[a-zA-Z0-9_%+-]{{1,32}}){{0,3}}@({_LABEL}\.){{1,3}}[a-zA-Z]{{2,12}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,4}}",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": r"[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "uri": rf"https?:\/\/{_LABEL}(\.{_LABEL}){{0,4}}(:[0-9]{{1,4}})?(\/[-a-zA-Z0-9_.~]{{0,64}}){{0,8}}",
}


def add_xml_call(rules: Rules, tool: Tool, schema: Schema, name: str) -> None:
    """Adds the rule `name`: what stands behind `<tool_call>` in a call of `tool`."""
    if any(char in tool.name for char in "<>\n"):
        raise InvalidRequest(f"The tool name {tool.name!r} holds <, > or a line break; rename the tool.", param="tools")
    while "$ref" in schema and isinstance(target := resolve(schema["$ref"], schema), dict) and target is not schema:
        schema = {**_definitions(schema), **target}
    for keyword in _OF_THE_WHOLE:
        if keyword in schema:
            _refuse(tool, keyword, f"#/{keyword}", "stands at the top of a tool's parameters")
    required = schema.get("required", [])
    parts: dict[str, Any] = dict.fromkeys(required, True) | schema.get("properties", {})
    body = [literal(f"\n{FUNCTION_OPEN}{tool.name}>\n")]
    for index, (key, part) in enumerate(parts.items()):
        if any(char in key for char in "<>\n"):
            _refuse(tool, "properties", "#/properties", f"has the name {key!r} with <, > or a line break in it")
            continue
        if part is False:
            continue
        parameter = f"{name}_{index}"
        for value in _values(rules, tool, part, schema, f"{parameter}_value", f"#/properties/{key}"):
            rules.add(parameter, f"{literal(f'{PARAMETER_OPEN}{key}>' + chr(10))} {value}")
        body.append(parameter if key in required else parameter + "?")
    rules.add(name, " ".join([*body, literal(f"{FUNCTION_CLOSE}\n{CALL_CLOSE}")]))


def _values(rules: Rules, tool: Tool, part: Any, root: Schema, name: str, path: str) -> Iterator[str]:
    """The alternatives for one value, each with the tag that closes it."""
    if types_of(part, root) == {"string"}:
        yield from _texts(rules, tool, part, root, name, path, frozenset())
        return
    schema = {} if part is True else dict(part)
    definitions = _definitions(root)
    if any(not ref.startswith(("#/$defs/", "#/definitions/")) for ref in _references([schema, definitions])):
        _refuse(tool, "$ref", path, "points outside `$defs`")
        schema = {}
    yield f"{json_value({**schema, **definitions})} {literal(_VALUE_END)}"


def _texts(
    rules: Rules, tool: Tool, part: Any, root: Schema, name: str, path: str, seen: frozenset[str]
) -> Iterator[str]:
    """As `_values`, of a schema that allows strings only."""
    if "$ref" in part and part["$ref"] not in seen:
        yield from _texts(rules, tool, resolve(part["$ref"], root), root, name, path, seen | {part["$ref"]})
        return
    for keyword in ("anyOf", "oneOf"):
        if keyword in part:
            for index, choice in enumerate(part[keyword]):
                yield from _texts(rules, tool, choice, root, f"{name}_{index}", f"{path}/{keyword}/{index}", seen)
            return
    if "const" in part or "enum" in part:
        for value in [part["const"]] if "const" in part else part["enum"]:
            if isinstance(value, str):
                yield literal(value + _VALUE_END)
        return
    if "allOf" in part:
        _refuse(tool, "allOf", f"{path}/allOf", "stands in a string parameter")
    patterns = list(_patterns(tool, part, path))
    if not patterns:
        rules.add_once(f"{_FREE_TEXT}[lazy]", until(PARAMETER_CLOSE))
        yield f'{_FREE_TEXT} "\\n"'
        return
    rules.add(name.upper(), f"({' & '.join([*patterns, _WITHOUT_TAG])}) {literal(_VALUE_END)}")
    yield name.upper()


def _patterns(tool: Tool, part: Schema, path: str) -> Iterator[str]:
    """Regular expressions that a string must match, all of them and as a whole."""
    if "minLength" in part or "maxLength" in part:
        yield f"/(?s:.{{{part.get('minLength', 0)},{part.get('maxLength', '')}}})/"
    if "format" in part:
        yield f"/{FORMAT_PATTERNS[part['format']]}/"
    if "pattern" in part:
        whole = whole_pattern(part["pattern"])
        if whole is None:
            _refuse(tool, "pattern", f"{path}/pattern", "has an anchor in one of several alternatives")
        else:
            yield f"/{whole}/"


def whole_pattern(pattern: str) -> str | None:
    """JSON Schema's patterns are searched for; this one must match the whole text. None if that cannot be written."""
    starts, ends = pattern.startswith("^"), bool(re.search(r"(?<!\\)(\\\\)*\$\Z", pattern))
    body = pattern[1 if starts else 0 : -1 if ends else None]
    # Outside of groups and classes, where the text is plain.
    bare = re.sub(r"\\.|\[(\\.|[^\]])*\]", "", body, flags=re.DOTALL)
    depth = 0
    for char in bare:
        depth += (char == "(") - (char == ")")
        if char in "^$" or (char == "|" and depth == 0 and (starts or ends)):
            return None
    return ("" if starts else "(?s:.*)") + f"(?:{body})" + ("" if ends else "(?s:.*)")


def _definitions(root: Schema) -> Schema:
    return {key: root[key] for key in ("$defs", "definitions") if key in root}


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        for key, part in schema.items():
            if key == "$ref" and isinstance(part, str):
                yield part
            else:
                yield from _references(part)


def _refuse(tool: Tool, keyword: str, path: str, problem: str) -> None:
    """Raises for a strict tool; for another the grammar is the wider for it."""
    if tool.strict:
        raise UnsupportedSchema(
            f"Tool {tool.name!r}: {keyword!r} {problem}, which this model's call syntax cannot enforce.",
            keyword=keyword, path=path, tool=tool.name,
        )  # fmt: skip

"""Tools of a Responses call: functions and custom (free text) tools are served, namespaces are flattened.

Tools that OpenAI hosts are ignored while the model may choose, because agents always offer some; choosing one is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from api.protocols.decoding import check_one_of, convert
from api.protocols.errors import BadRequest, missing, unsupported
from api.protocols.request import Tool, ToolChoice
from api.protocols.responses.schema import ToolChoiceParam, ToolParam

HOSTED = frozenset(
    {
        "web_search", "web_search_preview", "file_search", "mcp", "code_interpreter", "image_generation", "shell",
        "local_shell", "apply_patch", "computer", "computer_use_preview", "tool_search", "programmatic_tool_calling",
    }
)  # fmt: skip
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ToolReference:
    """How the client knows a tool that the model knows by one flat name."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class ToolSet:
    tools: list[Tool] = field(default_factory=list)
    references: dict[str, ToolReference] = field(default_factory=dict)
    echo: list[dict[str, Any]] = field(default_factory=list)


def flat_name(namespace: str | None, name: str) -> str:
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(tools: list[dict[str, Any]] | None) -> ToolSet:
    found = ToolSet()
    for index, raw in enumerate(tools or ()):
        path = f"tools[{index}]"
        param = convert(raw, ToolParam, path)
        if param.type == "namespace":
            for inner_index, inner in enumerate(param.tools or ()):
                inner_path = f"{path}.tools[{inner_index}]"
                _add(found, convert(inner, ToolParam, inner_path), inner_path, param.name)
            found.echo.append(raw)
        elif param.type in ("function", "custom"):
            _add(found, param, path, None)
            found.echo.append(_echo(raw, param))
        elif param.type in HOSTED or param.type.startswith(("web_search_", "computer_")):
            found.echo.append(raw)
        else:
            raise unsupported(
                f"{path}.type",
                f"'{path}' has the unknown type '{param.type}'.",
                "Use 'function', 'custom' or 'namespace'.",
            )
    return found


def _add(found: ToolSet, param: ToolParam, path: str, namespace: str | None) -> None:
    if param.type not in ("function", "custom"):
        raise unsupported(f"{path}.type", f"'{path}' is a '{param.type}' tool inside a namespace.", "Use 'function'.")
    if not param.name:
        raise missing(f"{path}.name")
    name = flat_name(namespace, param.name)
    if name in found.references:
        raise BadRequest(f"Two tools are named '{name}'.", f"{path}.name", "invalid_value")
    if param.type == "custom":
        found.references[name] = ToolReference("custom", param.name, namespace)
        found.tools.append(Tool(name, _custom_description(param), _CUSTOM_PARAMETERS))
        return
    found.references[name] = ToolReference("function", param.name, namespace)
    parameters = param.parameters if param.parameters is not None else {"type": "object", "properties": {}}
    found.tools.append(Tool(name, param.description or "", parameters, bool(param.strict)))


def _custom_description(param: ToolParam) -> str:
    """A grammar is shown to the model, not enforced."""
    grammar = (param.format or {}).get("definition")
    parts = [param.description or "", f"The input must follow this grammar:\n{grammar}" if grammar else ""]
    return "\n".join(part for part in parts if part)


def _echo(raw: dict[str, Any], param: ToolParam) -> dict[str, Any]:
    if param.type == "custom":
        return raw
    return {
        **raw,
        "description": param.description,
        "parameters": param.parameters,
        "strict": bool(param.strict),
    }


def read_choice(choice: str | ToolChoiceParam | None, found: ToolSet, *, parallel: bool) -> ToolChoice:
    if choice is None or choice in ("auto", "none"):
        return ToolChoice("none" if choice == "none" else "auto", parallel=parallel)
    if isinstance(choice, str):
        check_one_of(choice, ("none", "auto", "required"), "tool_choice")
        if not found.tools:
            raise BadRequest(
                "'tool_choice' is 'required', but 'tools' offers no function.", "tool_choice", "invalid_value"
            )
        return ToolChoice("required", parallel=parallel)
    if choice.type in ("function", "custom"):
        if not choice.name:
            raise missing("tool_choice.name")
        return ToolChoice("named", [_find(choice.name, found, "tool_choice.name")], parallel=parallel)
    if choice.type == "allowed_tools":
        return _allowed(choice, found, parallel)
    raise unsupported(
        "tool_choice.type",
        f"'tool_choice' is the hosted tool '{choice.type}', which is not served.",
        "Choose a function, or 'auto'.",
    )


def _find(name: str, found: ToolSet, path: str) -> str:
    if name in found.references:
        return name
    for flat, reference in found.references.items():
        if reference.name == name:
            return flat
    raise BadRequest(f"'{path}' is '{name}', which is not in 'tools'.", path, "invalid_value")


def _allowed(choice: ToolChoiceParam, found: ToolSet, parallel: bool) -> ToolChoice:
    mode = choice.mode or "auto"
    check_one_of(mode, ("auto", "required"), "tool_choice.mode")
    names = []
    for index, tool in enumerate(choice.tools or ()):
        path = f"tool_choice.tools[{index}].name"
        if tool.type in ("function", "custom"):
            if not tool.name:
                raise missing(path)
            names.append(_find(tool.name, found, path))
    if mode == "auto":
        return ToolChoice("allowed", names, parallel=parallel) if names else ToolChoice("none", parallel=parallel)
    if not names:
        raise BadRequest("'tool_choice' requires a call, but allows no function.", "tool_choice.tools", "invalid_value")
    return ToolChoice("required", names, parallel=parallel)


def custom_input(arguments: str) -> str:
    """The free text inside the arguments of a custom tool's call; broken JSON is given as it stands."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments

"""What the scripted engine says: reasoning, text and tool calls for a request, before they are cut into tokens."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass
from typing import Any

from inference_grpc.core.request import ChatPrompt, Constraint, Request, Tool
from inference_grpc.errors import InvalidRequest, UnsupportedSchema
from inference_grpc.scripted.directives import Directives
from inference_grpc.scripted.pattern import string_for
from inference_grpc.scripted.schema import instance_of, read_hints

BEST_BOOK = "Suddenly the reader put the book down and said that no other one had ever come close."
_SHELL = re.compile(r"shell|bash|exec|run|command|terminal", re.IGNORECASE)
_COMMAND_FIELDS = ("command", "cmd", "script", "input")
_STORY = (
    "the quiet river carries small boats past old stone houses while children watch from a wooden bridge and wave "
    "at every sailor who passes below because summer evenings are long here and nobody has to hurry home before dark "
    "when lamps along each bank begin to glow like slow stars between dark leaves of tall green trees"
)
_WORDS = _STORY.split()


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments_json: str


Part = Text | Reasoning | Call


def last_user_text(prompt: ChatPrompt | str | list[int]) -> str:
    """Where directives and hints are looked for."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return ""
    return next((message.content or "" for message in reversed(prompt.messages) if message.role == "user"), "")


def answer_parts(request: Request, directives: Directives, choice: int) -> list[Part]:
    """The whole answer of one choice, before max_tokens and stop strings cut it. Same request, same answer."""
    prompt = request.prompt
    text = last_user_text(prompt)
    randomness = random.Random(_seed(request, choice))  # words, not secrets
    parts: list[Part] = []
    if directives.think is not None or _asks_to_think(prompt):
        parts.append(Reasoning(directives.think or _sentence(randomness, 12)))
    tool_results = _tool_results(prompt)
    if request.constraint is not None and request.tool_choice.mode not in ("required", "named"):
        parts.append(Text(_constrained(request.constraint, text)))
    elif calls := _calls(request, directives, text, is_answering_tool=bool(tool_results)):
        parts += calls
    elif directives.say is not None:
        parts.append(Text(directives.say))
    elif directives.tokens is not None:
        parts.append(Text(_words(randomness, directives.tokens)))
    elif tool_results:
        parts.append(Text(f"The tool says: {' '.join(tool_results)}"))
    elif "best book" in text.lower():
        parts.append(Text(BEST_BOOK))
    else:
        parts.append(Text(_sentence(randomness, randomness.randint(8, 24))))
    return parts


def _seed(request: Request, choice: int) -> str:
    """Greedy answers depend on the prompt alone; sampled ones on the seed and the choice too."""
    prompt = request.prompt
    shown = repr(prompt.messages) if isinstance(prompt, ChatPrompt) else repr(prompt)
    if request.sampling.temperature == 0:
        return shown
    return f"{shown}|{request.sampling.seed}|{choice}"


def _words(randomness: random.Random, count: int) -> str:
    return " ".join(randomness.choices(_WORDS, k=count))


def _sentence(randomness: random.Random, count: int) -> str:
    return _words(randomness, count).capitalize() + "."


def _asks_to_think(prompt: ChatPrompt | str | list[int]) -> bool:
    return isinstance(prompt, ChatPrompt) and prompt.template_options.get("enable_thinking") is True


def _tool_results(prompt: ChatPrompt | str | list[int]) -> list[str]:
    """The tool results that end the conversation, if it ends with some."""
    results: list[str] = []
    if isinstance(prompt, ChatPrompt):
        for message in reversed(prompt.messages):
            if message.role != "tool":
                break
            results.insert(0, message.content or "")
    return results


# --- tool calls -----------------------------------------------------------------------------------------------------


def _calls(request: Request, directives: Directives, text: str, *, is_answering_tool: bool) -> list[Part]:
    prompt, choice = request.prompt, request.tool_choice
    tools = prompt.tools if isinstance(prompt, ChatPrompt) else []
    if not tools or choice.mode == "none":
        return []
    if choice.names or choice.mode in ("named", "allowed"):
        unknown = set(choice.names) - {tool.name for tool in tools}
        if unknown:
            raise InvalidRequest(f"tool_choice names {', '.join(sorted(unknown))}, no such tool.", param="tool_choice")
        tools = [tool for tool in tools if tool.name in choice.names]
    must_call = choice.mode in ("required", "named")
    if is_answering_tool and not must_call:
        return []
    chosen = _mentioned(tools, text)
    if directives.run is not None:
        shells = [tool for tool in tools if _SHELL.search(tool.name)]
        chosen = shells[:1] or chosen or tools[:1]
    elif must_call and not chosen:
        chosen = tools[:1]
    if not choice.parallel or choice.mode == "named":
        chosen = chosen[:1]
    return [_call(request, index, tool, text, directives) for index, tool in enumerate(chosen)]


def _mentioned(tools: list[Tool], text: str) -> list[Tool]:
    """Tools whose name the prompt holds; else the first that shares a telling word with it."""
    named = [tool for tool in tools if re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", text)]
    if named:
        return named
    lowered = text.lower()
    for tool in tools:
        words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", tool.name).lower())
        if any(len(word) > 3 and re.search(rf"\b{word}", lowered) for word in words):
            return [tool]
    return tools[:1] if re.search(r"\buse (?:the|a|your|this) \S*\s?tool", lowered) else []


def _call(request: Request, index: int, tool: Tool, text: str, directives: Directives) -> Call:
    if directives.run is not None and _SHELL.search(tool.name):
        arguments = _shell_arguments(tool, directives.run)
    else:
        # The tool's own name is no argument of it, though the prompt quotes it.
        arguments = instance_of(
            tool.parameters or {"type": "object"}, read_hints(text.replace(tool.name, "")), is_strict=False
        )
    identity = hashlib.blake2b(f"{request.request_id}|{index}|{tool.name}".encode(), digest_size=12).hexdigest()
    return Call(f"call_{identity}", tool.name, json.dumps(arguments, ensure_ascii=False))


def _shell_arguments(tool: Tool, command: str) -> dict[str, Any]:
    """The command in the field that takes it, as text or as an argument vector; the rest as the schema requires."""
    properties = tool.parameters.get("properties", {})
    field = next((name for name in _COMMAND_FIELDS if name in properties), next(iter(properties), "command"))
    required = [name for name in tool.parameters.get("required", []) if name != field]
    others = {
        **tool.parameters,
        "properties": {name: properties.get(name, True) for name in required},
        "required": required,
    }
    kind = properties.get(field, {}).get("type")
    value = ["bash", "-lc", command] if kind == "array" else command
    return {field: value, **instance_of(others, read_hints(command), is_strict=False)}


# --- constrained text -----------------------------------------------------------------------------------------------


def _constrained(constraint: Constraint, text: str) -> str:
    hints = read_hints(text)
    match constraint.kind:
        case "json_schema":
            try:
                schema = json.loads(constraint.text)
            except ValueError as error:
                raise InvalidRequest(f"The JSON Schema is not JSON: {error}", param="constraint") from None
            return json.dumps(instance_of(schema, hints), ensure_ascii=False)
        case "json_object":
            names = [name for name in ("setup", "punchline") if name in text.lower()] or hints.strings[:4] or ["answer"]
            return json.dumps({name: f"A scripted {name}" for name in names}, ensure_ascii=False)
        case "regex":
            return string_for(constraint.text)
        case "grammar":
            raise UnsupportedSchema("The scripted engine follows no grammar.", keyword="grammar")

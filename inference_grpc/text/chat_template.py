"""Renders the chat template that a model file carries, in a sandbox, with what templates expect to find there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_grpc.core.request import ChatPrompt, Message, ToolCall, ToolChoice
from inference_grpc.errors import InvalidRequest
from inference_grpc.text.families import THINK_OPEN, renders_tools
from inference_grpc.text.system_turns import REFUSAL, with_system_first
from inference_grpc.text.tool_prompt import with_tools


class ChatTemplate:
    """One template, compiled once. `special_tokens` are the names it may refer to: bos_token and the like."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.may_think = THINK_OPEN in source  # the model may reason before it answers
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)

    def render(self, prompt: ChatPrompt, tool_choice: ToolChoice | None = None) -> str:
        """The prompt as text, ready for the model to go on. Raises `InvalidRequest` with the template's own words."""
        messages = with_system_first(prompt.messages) if REFUSAL in self.source else prompt.messages
        if not renders_tools(self.source):
            messages = with_tools(messages, prompt.tools, tool_choice or ToolChoice())
        variables: dict[str, Any] = {  # a template's variables are free form
            **prompt.template_options,
            **self._special_tokens,
            "messages": [_as_dict(message) for message in messages],
            "tools": [_tool_as_dict(tool.name, tool.description, tool.parameters) for tool in prompt.tools] or None,
            "add_generation_prompt": not prompt.continue_final_message,
        }
        try:
            text = self._template.render(variables)
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {error.message or error}", param="messages"
            ) from error
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise InvalidRequest(
                f"The model's chat template cannot render these messages: {error}", param="messages"
            ) from error
        return _cut_after_final_message(text, messages) if prompt.continue_final_message else text


def _cut_after_final_message(text: str, messages: list[Message]) -> str:
    """Drop what the template puts after the last message, so that the model goes on inside it."""
    final = messages[-1].content or ""
    # Some templates trim contents.
    for content in (final, final.strip()):
        end = text.rfind(content)
        if content and end >= 0:
            return text[: end + len(content)]
    raise InvalidRequest("The final message has no content to continue, or the template hides it.", param="messages")


def _as_dict(message: Message) -> dict[str, Any]:
    """The shape that templates know. A null content is an empty text: templates join it to strings."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    return fields


def _arguments(call: ToolCall) -> Any:
    """Templates walk through arguments; a text that is no JSON object is shown as it is."""
    try:
        return json.loads(call.arguments_json)
    except json.JSONDecodeError:
        return call.arguments_json


def _tool_as_dict(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

"""Responses body to the one internal request, in two steps: what the body says, then what earlier responses add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from api.protocols.decoding import check_metadata, check_one_of, decode
from api.protocols.errors import BadRequest, missing
from api.protocols.request import Constraint, GenerationRequest, Message, Sampling
from api.protocols.responses import schema
from api.protocols.responses.items import Conversation, as_items, kind_of
from api.protocols.responses.tools import ToolSet, read_choice, read_tools
from api.protocols.thinking import template_options

INCLUDE_LOGPROBS, INCLUDE_SEALED_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"
# Those of hosted tools and images ask for parts that no answer here has.
INCLUDABLE = (
    INCLUDE_LOGPROBS, INCLUDE_SEALED_REASONING, "web_search_call.action.sources", "web_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url",
)  # fmt: skip


@dataclass(slots=True)
class Parsed:
    """`items` is the call's own input, `closing` a last message of our own. When `needs_history`, `request.messages` is
    empty until `expand`."""

    request: GenerationRequest
    body: schema.InputBody
    items: list[dict[str, Any]]
    tool_set: ToolSet
    closing: Message | None = None
    seals_reasoning: bool = False
    summarizes_reasoning: bool = False
    is_stored: bool = False
    # The caller said so, and did not leave it to the default.
    is_asked_to_store: bool = False
    echo: dict[str, Any] = field(default_factory=dict)

    @property
    def requests(self) -> list[GenerationRequest]:
        return [self.request]

    @property
    def previous_response_id(self) -> str | None:
        return self.body.previous_response_id

    @property
    def referenced_ids(self) -> list[str]:
        """Ids of kept items that the input names without repeating them."""
        return [item["id"] for item in self.items if kind_of(item) == "item_reference" and "id" in item]

    @property
    def needs_history(self) -> bool:
        return bool(self.previous_response_id or self.referenced_ids)


def parse_count(body: bytes) -> Parsed:
    """As `parse`, for a call that only wants to know the prompt's size."""
    return read_input(decode(schema.INPUT_BODY, body))


def parse(body: bytes) -> Parsed:
    wire = decode(schema.BODY, body)
    check_metadata(wire.metadata)
    for index, name in enumerate(wire.include or ()):
        check_one_of(name, INCLUDABLE, f"include[{index}]")
    parsed = read_input(wire)
    request = parsed.request
    request.stream = bool(wire.stream)
    request.max_tokens = wire.max_output_tokens
    request.sampling = Sampling(
        temperature=wire.temperature,
        top_p=wire.top_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
    )
    request.top_logprobs = wire.top_logprobs or 0
    request.logprobs = INCLUDE_LOGPROBS in (wire.include or ()) or bool(wire.top_logprobs)
    request.end_user = wire.safety_identifier or wire.user
    parsed.seals_reasoning = INCLUDE_SEALED_REASONING in (wire.include or ())
    parsed.is_stored = wire.store is not False
    parsed.is_asked_to_store = wire.store is True
    parsed.echo = _echo(wire, parsed)
    return parsed


def read_input(wire: schema.InputBody) -> Parsed:
    """The part that create, input_tokens and compact have in common."""
    if wire.input is None and wire.previous_response_id is None:
        raise missing("input")
    if wire.input == [] and wire.previous_response_id is None:
        raise BadRequest("'input' must hold at least one item.", "input", "invalid_value")
    if wire.truncation is not None:
        check_one_of(wire.truncation, ("auto", "disabled"), "truncation")
    tool_set = read_tools(wire.tools)
    request = GenerationRequest(
        model=wire.model,
        stream=False,
        messages=[],
        tools=tool_set.tools,
        tool_choice=read_choice(wire.tool_choice, tool_set, parallel=wire.parallel_tool_calls is not False),
        template_options=_template_options(wire.reasoning),
        constraint=_constraint(wire.text),
    )
    parsed = Parsed(
        request,
        wire,
        as_items(wire.input),
        tool_set,
        summarizes_reasoning=bool(wire.reasoning and (wire.reasoning.summary or wire.reasoning.generate_summary)),
    )
    if not parsed.needs_history:
        expand(parsed, history=(), referenced={})
    return parsed


def expand(parsed: Parsed, *, history: Sequence[dict[str, Any]], referenced: Mapping[str, dict[str, Any]]) -> None:
    """Build the conversation from kept items: `history` is the chain before, oldest first; `referenced` is by id.

    Raises BadRequest; then the request must not run.
    """
    conversation = Conversation()
    if parsed.body.instructions:
        conversation.messages.append(Message("system", parsed.body.instructions))
    conversation.add(history, "previous_response")
    own = []
    for index, item in enumerate(parsed.items):
        if kind_of(item) == "item_reference":
            path = f"input[{index}].id"
            if "id" not in item:
                raise missing(path)
            if item["id"] not in referenced:
                raise BadRequest(f"Item with id '{item['id']}' not found.", path, "item_not_found")
            item = referenced[item["id"]]
        own.append(item)
    conversation.add(own, "input")
    if parsed.closing:
        conversation.messages.append(parsed.closing)
    parsed.items = own
    parsed.request.messages = conversation.messages


def _template_options(reasoning: schema.Reasoning | None) -> dict[str, Any]:
    if reasoning is None:
        return {}
    for name in ("summary", "generate_summary"):
        if value := getattr(reasoning, name):
            check_one_of(value, ("auto", "concise", "detailed"), f"reasoning.{name}")
    return template_options(reasoning.effort, "reasoning.effort")


def _constraint(text: schema.TextConfig | None) -> Constraint | None:
    if text is None:
        return None
    if text.verbosity is not None:
        check_one_of(text.verbosity, ("low", "medium", "high"), "text.verbosity")
    wanted = text.format
    if wanted is None or wanted.type == "text":
        return None
    check_one_of(wanted.type, ("text", "json_object", "json_schema"), "text.format.type")
    if wanted.type == "json_object":
        return Constraint("json_object")
    if not wanted.name:
        raise missing("text.format.name")
    if wanted.schema is None:
        raise missing("text.format.schema")
    return Constraint("json_schema", orjson.dumps(wanted.schema).decode())


def _echo(wire: schema.Body, parsed: Parsed) -> dict[str, Any]:
    """The part of the Response object that repeats the request. Every key is there: nullable is not optional."""
    text: dict[str, Any] = {"format": {"type": "text"}}
    if wire.text:
        if wire.text.format and wire.text.format.type == "json_schema":
            text["format"] = {**msgspec.to_builtins(wire.text.format), "strict": bool(wire.text.format.strict)}
        elif wire.text.format:
            text["format"] = {"type": wire.text.format.type}
        if wire.text.verbosity:
            text["verbosity"] = wire.text.verbosity
    reasoning = wire.reasoning or schema.Reasoning()
    return {
        "background": False,
        "frequency_penalty": wire.frequency_penalty or 0.0,
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "max_tool_calls": wire.max_tool_calls,
        "metadata": wire.metadata or {},
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "presence_penalty": wire.presence_penalty or 0.0,
        "previous_response_id": wire.previous_response_id,
        "prompt_cache_key": wire.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
        "safety_identifier": wire.safety_identifier,
        "service_tier": "default",
        "store": parsed.is_stored,
        "temperature": 1.0 if wire.temperature is None else wire.temperature,
        "text": text,
        "tool_choice": _echo_choice(wire.tool_choice),
        "tools": parsed.tool_set.echo,
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": 1.0 if wire.top_p is None else wire.top_p,
        "truncation": wire.truncation or "disabled",
        "user": wire.user,
    }


def _echo_choice(choice: str | schema.ToolChoiceParam | None) -> str | dict[str, Any]:
    if not isinstance(choice, schema.ToolChoiceParam):
        return choice or "auto"
    return {name: value for name, value in msgspec.to_builtins(choice).items() if value is not None}

"""Wire schema of OpenAI's Responses, as far as we read it. Unknown fields pass."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from api.protocols.decoding import Count, ignored, named, one_of, refused
from api.protocols.thinking import EFFORTS

_ONLY_CHAT = "this API has no such field; Chat Completions honours it"


class Part(Struct):
    """A content part of any type."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Struct):
    """An input item of any type: which fields matter depends on `type`. Replayed items may lack type, id and status."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | dict[str, Any] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


class ToolParam(Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON Schema
    strict: bool | None = None
    format: dict[str, Any] | None = None  # of a custom tool: text, or a grammar
    tools: list[dict[str, Any]] | None = None  # of a namespace


class AllowedTool(Struct):
    type: str
    name: str | None = None


class ToolChoiceParam(Struct):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[AllowedTool] | None = None


class TextFormat(Struct):
    type: Annotated[str, one_of("text", "json_object", "json_schema")]
    name: str | None = None
    schema: dict[str, Any] | None = None  # JSON Schema
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct):
    format: TextFormat | None = None
    verbosity: Annotated[str | None, ignored("the model has one verbosity")] = None


class Reasoning(Struct):
    effort: Annotated[str, one_of(*EFFORTS)] | None = None
    summary: str | None = None
    generate_summary: str | None = None


class InputBody(Struct, kw_only=True):
    """What shapes the prompt: all of input_tokens and compact, and the first half of create."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    conversation: Annotated[
        Any, refused("conversation objects are not kept; chain responses with 'previous_response_id'")
    ] = None
    truncation: Annotated[
        Annotated[str, one_of("auto", "disabled")] | None,
        ignored("a conversation that does not fit is refused, never cut"),
    ] = None


class Body(InputBody, kw_only=True):
    stream: bool | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    background: Annotated[bool | None, refused("answers are made while the client waits; use 'stream'")] = None
    prompt: Annotated[Any, refused("prompt templates are not kept; send the text in 'instructions' and 'input'")] = None
    moderation: Annotated[Any, refused("the gateway does not moderate")] = None
    stream_options: Annotated[Any, ignored("events are not padded")] = None
    service_tier: Annotated[str | None, ignored("there is one tier, 'default'")] = None
    prompt_cache_key: Annotated[str | None, ignored("prefixes are cached per organization by themselves")] = None
    prompt_cache_retention: Annotated[Any, ignored("the engine decides what stays cached")] = None
    prompt_cache_options: Annotated[Any, ignored("the engine decides what stays cached")] = None
    context_management: Annotated[Any, ignored("compact with POST /v1/responses/compact")] = None
    client_metadata: Annotated[Any, ignored("notes of the client to itself")] = None
    access_programs: Annotated[Any, ignored("there are none")] = None
    background_options: Annotated[Any, ignored("there are no background answers")] = None
    stop: Annotated[Any, ignored(_ONLY_CHAT)] = None
    n: Annotated[Any, ignored(_ONLY_CHAT)] = None
    seed: Annotated[Any, ignored(_ONLY_CHAT)] = None
    logit_bias: Annotated[Any, ignored(_ONLY_CHAT)] = None
    max_tokens: Annotated[Any, named("max_output_tokens")] = None
    max_completion_tokens: Annotated[Any, named("max_output_tokens")] = None
    response_format: Annotated[Any, named("text.format")] = None
    reasoning_effort: Annotated[Any, named("reasoning.effort")] = None
    image: Annotated[Any, ignored("the models here read text only")] = None


BODY = msgspec.json.Decoder(Body)
INPUT_BODY = msgspec.json.Decoder(InputBody)

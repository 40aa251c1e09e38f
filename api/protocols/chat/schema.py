"""Wire schema of OpenAI's Chat Completions, as far as we read it. Unknown fields pass."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from api.protocols.decoding import Count, Seed, TopK, ignored, named, one_of, refused
from api.protocols.thinking import EFFORTS

MAX_CHOICES = 8
MAX_STOPS = 4


class Part(Struct):
    """A content part of any type; text and refusal parts are read, the others are refused by name."""

    type: Annotated[str, one_of("text", "refusal")]
    text: str | None = None
    refusal: str | None = None


class FunctionCallParam(Struct):
    name: str
    arguments: str


class ToolCallParam(Struct):
    id: str
    function: FunctionCallParam | None = None
    type: str = "function"


class MessageParam(Struct):
    role: Annotated[str, one_of("developer", "system", "user", "assistant", "tool", "function")]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCallParam] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCallParam | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionParam(Struct):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON Schema
    strict: bool | None = None


class ToolParam(Struct):
    type: Annotated[str, one_of("function")]
    function: FunctionParam | None = None


class NamedFunction(Struct):
    name: str


class AllowedToolParam(Struct):
    type: Annotated[str, one_of("function")]
    function: NamedFunction | None = None


class AllowedTools(Struct):
    mode: Annotated[str, one_of("auto", "required")]
    tools: list[AllowedToolParam]


class ToolChoiceParam(Struct):
    type: Annotated[str, one_of("function", "allowed_tools")]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchemaFormat(Struct):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    type: Annotated[str, one_of("text", "json_object", "json_schema")]
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, ignored("chunks are not padded")] = None


class Body(Struct, kw_only=True):
    model: str
    messages: list[MessageParam]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: Annotated[str, one_of("none", "auto", "required")] | ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionParam] | None = None
    function_call: Annotated[str, one_of("none", "auto")] | NamedFunction | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Annotated[str, one_of(*EFFORTS)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    modalities: list[Annotated[str, one_of("text")]] | None = None
    # Of other servers' clients: sampling and templates that OpenAI does not have.
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    # Accepted without effect, and never accepted.
    max_output_tokens: Annotated[Any, named("max_completion_tokens")] = None
    verbosity: Annotated[
        Annotated[str, one_of("low", "medium", "high")] | None, ignored("the model has one verbosity")
    ] = None
    store: Annotated[bool | None, ignored("chat completions are not kept; responses are")] = None
    service_tier: Annotated[str | None, ignored("there is one tier, 'default'")] = None
    prediction: Annotated[Any, ignored("the engine drafts by itself")] = None
    prompt_cache_key: Annotated[str | None, ignored("prefixes are cached per organization by themselves")] = None
    prompt_cache_retention: Annotated[Any, ignored("the engine decides what stays cached")] = None
    prompt_cache_options: Annotated[Any, ignored("the engine decides what stays cached")] = None
    audio: Annotated[Any, refused("the models here answer with text only")] = None
    web_search_options: Annotated[Any, refused("the gateway has no web search; offer it as a function tool")] = None
    stop_token_ids: Annotated[Any, refused("name the texts in 'stop'")] = None
    min_tokens: Annotated[Any, refused("the model ends when it is done; see 'ignore_eos'")] = None
    use_beam_search: Annotated[Any, refused("answers are sampled; use 'n'")] = None
    guided_choice: Annotated[Any, refused("use 'guided_regex' or an enum in 'response_format'")] = None
    moderation: Annotated[Any, refused("the gateway does not moderate")] = None


BODY = msgspec.json.Decoder(Body)

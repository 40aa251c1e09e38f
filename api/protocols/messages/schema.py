"""Wire schema of Anthropic's Messages, as far as we read it. Unknown fields pass."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from api.protocols.decoding import Count, TopK, ignored, one_of, refused

CACHE_CONTROL = ignored("prefixes are cached by themselves, whatever is marked")


class Source(Struct):
    type: str
    data: str | None = None
    content: str | list[Block] | None = None


class Block(Struct):
    """A content block of any type: which fields matter depends on `type`."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None  # free form by nature
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None
    cache_control: Annotated[Any, CACHE_CONTROL] = None
    citations: Annotated[Any, ignored("answers carry no citations")] = None


class Turn(Struct):
    role: Annotated[str, one_of("user", "assistant", "system")]
    content: str | list[Block]


class ToolParam(Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None  # JSON Schema
    strict: bool | None = None
    cache_control: Annotated[Any, CACHE_CONTROL] = None
    eager_input_streaming: Annotated[Any, ignored("arguments always stream as they are made")] = None
    defer_loading: Annotated[Any, ignored("every tool is shown to the model")] = None
    input_examples: Annotated[Any, ignored("the model sees the schema only")] = None
    allowed_callers: Annotated[Any, ignored("there is no code execution that could call a tool")] = None


class ToolChoiceParam(Struct):
    type: Annotated[str, one_of("auto", "any", "tool", "none")]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    type: str
    budget_tokens: Annotated[int | None, ignored("checked, but the model thinks as long as 'max_tokens' lets it")] = (
        None
    )
    display: str | None = None


class OutputFormat(Struct):
    type: Annotated[str, one_of("json_schema")]
    schema: dict[str, Any] | None = None  # JSON Schema


class OutputConfig(Struct):
    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(Struct):
    user_id: str | None = None


class CountBody(Struct, kw_only=True):
    """count_tokens: what shapes the prompt, without what shapes the answer."""

    model: str
    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: Annotated[Any, CACHE_CONTROL] = None
    context_management: Annotated[Any, ignored("the conversation is used as sent")] = None
    mcp_servers: Annotated[Any, refused("the gateway calls no MCP servers; run the tools in the client")] = None
    speed: Annotated[Any, ignored("there is one speed")] = None


class Body(CountBody, kw_only=True):
    max_tokens: Count
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: TopK | None = None
    metadata: Metadata | None = None
    container: Annotated[Any, refused("there are no code execution containers")] = None
    service_tier: Annotated[Any, ignored("there is one tier, 'standard'")] = None
    inference_geo: Annotated[Any, ignored("the operator places the model")] = None
    diagnostics: Annotated[Any, ignored("no cache diagnostics are made")] = None
    user_profile_id: Annotated[Any, ignored("the API key says who calls")] = None
    workspace_id: Annotated[Any, ignored("the API key says which project is meant")] = None


BODY = msgspec.json.Decoder(Body)
COUNT_BODY = msgspec.json.Decoder(CountBody)

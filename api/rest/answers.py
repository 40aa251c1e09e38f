"""What the inference paths answer, as schemas of the OpenAPI document.

The writers of `api/protocols` build their bytes by hand, for speed; the tests hold their answers to these shapes. A
field with a default may be absent, one that may be null is there all the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Nothing = Annotated[None, Meta(description="Always null.")]

# OpenAI -----------------------------------------------------------------------------------------


class OpenAIErrorDetail(Struct):
    message: Annotated[str, Meta(description="What is wrong, and what to do.")]
    type: str
    param: Annotated[str | None, Meta(description="Path of the field that is wrong.")]
    code: str | None


class OpenAIError(Struct):
    error: OpenAIErrorDetail


class PromptTokenDetails(Struct):
    cached_tokens: int
    audio_tokens: int


class CompletionTokenDetails(Struct):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(Struct):
    prompt_tokens: Annotated[int, Meta(description="Cached tokens included.")]
    completion_tokens: Annotated[int, Meta(description="Reasoning tokens included.")]
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: CompletionTokenDetails


class TopToken(Struct):
    token: str
    bytes: list[int]
    logprob: float


class ChatToken(TopToken):
    top_logprobs: list[TopToken]


class ChatLogprobs(Struct):
    content: list[ChatToken]
    refusal: Nothing


class FunctionCall(Struct):
    name: str
    arguments: Annotated[str, Meta(description="JSON text.")]


class FunctionToolCall(Struct):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Struct):
    role: Literal["assistant"]
    content: Annotated[str | None, Meta(description="Null where the model calls tools without a word.")]
    refusal: Nothing
    annotations: list[Any]
    reasoning_content: Annotated[str, Meta(description="What the model thought before it answered.")] = ""
    tool_calls: list[FunctionToolCall] = []
    function_call: Annotated[FunctionCall | None, Meta(description="Where the older 'functions' were sent.")] = None


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call", "content_filter"]


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: str
    service_tier: Literal["default"]
    system_fingerprint: Annotated[str | None, Meta(description="Changes when equal seeds may give other answers.")]
    choices: list[ChatChoice]
    usage: CompletionUsage


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length", "content_filter"]


class TextCompletion(Struct):
    id: str
    object: Literal["text_completion"]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage
    system_fingerprint: Annotated[str | None, Meta(description="Changes when equal seeds may give other answers.")]


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(Struct):
    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


class InputTokenDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokenDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: Annotated[int, Meta(description="Cached tokens included.")]
    input_tokens_details: InputTokenDetails
    output_tokens: Annotated[int, Meta(description="Reasoning tokens included.")]
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class OutputItem(Struct):
    """A message, a reasoning item, a function call or a custom tool call."""

    id: str
    type: Literal["message", "reasoning", "function_call", "custom_tool_call"]


class ResponseError(Struct):
    code: str
    message: str


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(Struct):
    """The fields of the request are repeated in it, too."""

    id: str
    object: Literal["response"]
    created_at: Annotated[int, Meta(description="Unix seconds.")]
    completed_at: int | None
    model: str
    status: Literal["completed", "incomplete", "failed"]
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    previous_response_id: str | None
    store: bool
    tools: list[Any]
    tool_choice: Any
    parallel_tool_calls: bool
    metadata: dict[str, str]


class CompactionItem(Struct):
    id: str
    type: Literal["compaction"]
    encrypted_content: Annotated[str, Meta(description="Send the item back as input; only this service reads it.")]


class CompactedResponse(Struct):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[CompactionItem]
    usage: ResponseUsage


class DeletedResponse(Struct):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItem(Struct):
    id: str
    type: str


class InputItemList(Struct):
    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


class OpenAIModel(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAIModelList(Struct):
    object: Literal["list"]
    data: list[OpenAIModel]


# Anthropic --------------------------------------------------------------------------------------


class AnthropicErrorDetail(Struct):
    type: str
    message: Annotated[str, Meta(description="What is wrong, and what to do.")]


class AnthropicError(Struct):
    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class AnthropicOutputDetails(Struct):
    thinking_tokens: int


class MessageUsage(Struct):
    input_tokens: Annotated[int, Meta(description="Without those read from the cache.")]
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: Annotated[int, Meta(description="Thinking included.")]
    output_tokens_details: AnthropicOutputDetails
    service_tier: Literal["standard"]


class ContentBlock(Struct):
    type: Literal["text", "thinking", "tool_use"]


class MessageObject(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    stop_details: Nothing
    usage: MessageUsage


class MessageTokens(Struct):
    input_tokens: int


class AnthropicModel(Struct):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class AnthropicModelList(Struct):
    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Health(Struct):
    """What it depends on is told, but makes it no less healthy."""

    status: Literal["ok"]
    valkey: bool
    announcements: bool
    postgresql: bool

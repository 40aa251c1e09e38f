"""One OpenAPI document: DRF's own paths, and the inference paths from the schemas that parse and answer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from django.conf import settings

from api.protocols import chat, completions, embeddings, messages, responses
from api.protocols.chat.schema import Body as ChatBody
from api.protocols.completions import Body as CompletionsBody
from api.protocols.embeddings import Body as EmbeddingsBody
from api.protocols.messages.schema import Body as MessagesBody
from api.protocols.messages.schema import CountBody as MessagesCountBody
from api.protocols.responses import compact
from api.protocols.responses.schema import Body as ResponsesBody
from api.protocols.responses.schema import InputBody as ResponsesInputBody
from api.rest import answers

TAG = "inference"


@dataclass(frozen=True, slots=True)
class Operation:
    """An inference operation. `answers` has one schema, or on shared paths one of each dialect."""

    method: str
    path: str
    name: str
    group: str
    summary: str
    answers: tuple[type[msgspec.Struct], ...]
    body: type[msgspec.Struct] | None = None
    # What the events of a stream are called, where the operation has one: "message" is server-sent events' own default.
    events: tuple[str, ...] = ()
    queries: tuple[tuple[str, dict[str, Any], str], ...] = ()
    is_open: bool = False


CHAT, COMPLETIONS, RESPONSES, MESSAGES = "Chat Completions", "Completions", "Responses", "Messages"
EMBEDDINGS, MODELS = "Embeddings", "Models and health"
_KEPT = "/v1/responses/{response_id}"
_UNNAMED = ("message",)
_MESSAGE_EVENTS = (
    "message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "error",
)  # fmt: skip
_RESPONSE_EVENTS = tuple(
    f"response.{name}"
    for name in (
        "created", "in_progress", "output_item.added", "output_item.done", "content_part.added", "content_part.done",
        "output_text.delta", "output_text.done", "reasoning_text.delta", "reasoning_text.done",
        "reasoning_summary_part.added", "reasoning_summary_part.done", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "function_call_arguments.delta", "function_call_arguments.done",
        "custom_tool_call_input.delta", "custom_tool_call_input.done", "completed", "incomplete", "failed",
    )
)  # fmt: skip


def _only(paths: frozenset[str]) -> str:
    (path,) = paths
    return path


OPERATIONS: tuple[Operation, ...] = (
    Operation("post", _only(chat.PATHS), "create_chat_completion", CHAT, "Answer a conversation",
              (answers.ChatCompletion,), ChatBody, events=_UNNAMED),
    Operation("post", _only(responses.PATHS), "create_response", RESPONSES, "Answer a conversation, kept if wanted",
              (answers.ResponseObject,), ResponsesBody, events=_RESPONSE_EVENTS),
    Operation("get", _KEPT, "get_response", RESPONSES, "A kept response; with 'stream' its events once more",
              (answers.ResponseObject,), events=_RESPONSE_EVENTS, queries=(
                  ("stream", {"type": "boolean"}, "Tell it as events."),
                  ("starting_after", {"type": "integer", "minimum": 0}, "Leave out the events up to this number."))),
    Operation("delete", _KEPT, "delete_response", RESPONSES, "Forget a kept response", (answers.DeletedResponse,)),
    Operation("get", f"{_KEPT}/input_items", "list_input_items", RESPONSES, "What a kept response answered",
              (answers.InputItemList,), queries=(
                  ("limit", {"type": "integer", "minimum": 1, "maximum": 100}, "Items at most; 20 by default."),
                  ("order", {"type": "string", "enum": ["asc", "desc"]}, "Newest first ('desc') by default."),
                  ("after", {"type": "string"}, "Id of the item after which to go on."))),
    Operation("post", f"{_KEPT}/cancel", "cancel_response", RESPONSES,
              "Always refused: answers are not made in the background", (answers.ResponseObject,)),
    Operation("post", _only(responses.COUNT_PATHS), "count_response_tokens", RESPONSES, "Tokens of a prompt",
              (answers.InputTokens,), ResponsesInputBody),
    Operation("post", _only(compact.PATHS), "compact_response", RESPONSES, "Sum a conversation up, sealed",
              (answers.CompactedResponse,), ResponsesInputBody),
    Operation("post", _only(messages.PATHS), "create_message", MESSAGES, "Answer a conversation",
              (answers.MessageObject,), MessagesBody, events=_MESSAGE_EVENTS),
    Operation("post", _only(messages.COUNT_PATHS), "count_message_tokens", MESSAGES, "Tokens of a prompt",
              (answers.MessageTokens,), MessagesCountBody),
    Operation("post", _only(completions.PATHS), "create_completion", COMPLETIONS, "Go on from a text (legacy)",
              (answers.TextCompletion,), CompletionsBody, events=_UNNAMED),
    Operation("post", _only(embeddings.PATHS), "create_embeddings", EMBEDDINGS,
              "Vectors of texts, from models with a deployment that embeds", (answers.EmbeddingList,), EmbeddingsBody),
    Operation("get", "/v1/models", "list_offered_models", MODELS,
              "The models on offer, in Anthropic's shape with 'anthropic-version' or 'x-api-key', else in OpenAI's",
              (answers.OpenAIModelList, answers.AnthropicModelList)),
    Operation("get", "/v1/models/{model}", "show_offered_model", MODELS, "One model",
              (answers.OpenAIModel, answers.AnthropicModel)),
    Operation("get", "/health", "health", MODELS, "Whether this process takes calls", (answers.Health,), is_open=True),
)  # fmt: skip
_SECURITY: list[dict[str, list[str]]] = [{"bearerKey": []}, {"headerKey": []}]
_PATH_PARAMETERS = {"model": "Public name of the model", "response_id": "Id of a kept response"}


def add_inference_paths(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Post-processing hook of drf-spectacular, whose signature this is."""
    reference_of: dict[Any, dict[str, Any]] = {}
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    errors: list[Any] = [answers.OpenAIError, answers.AnthropicError]
    _add_schemas(
        [*errors, *(each for operation in OPERATIONS for each in operation.answers)], "", schemas, reference_of
    )
    for group in dict.fromkeys(operation.group for operation in OPERATIONS):
        bodies = [operation.body for operation in OPERATIONS if operation.body and operation.group == group]
        _add_schemas(bodies, group.partition(" ")[0], schemas, reference_of)
    result["components"].setdefault("securitySchemes", {}).update(
        bearerKey={"type": "http", "scheme": "bearer"},
        headerKey={"type": "apiKey", "in": "header", "name": "x-api-key"},
    )
    result["servers"] = [{"url": settings.PUBLIC_URL}]
    for operation in OPERATIONS:
        result["paths"].setdefault(operation.path, {})[operation.method] = _describe(operation, reference_of)
    return result


def _add_schemas(
    types: list[Any], prefix: str, schemas: dict[str, Any], reference_of: dict[Any, dict[str, Any]]
) -> None:
    types = list(dict.fromkeys(types))
    template = f"#/components/schemas/{prefix}{{name}}"
    references, components = msgspec.json.schema_components(types, ref_template=template)
    named = {prefix + name: schema for name, schema in components.items()}
    if clash := schemas.keys() & named.keys():
        raise ValueError(f"Two schemas are named {', '.join(sorted(clash))}.")
    schemas.update(named)
    reference_of.update(zip(types, references, strict=True))


def _describe(operation: Operation, reference_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    answer = _one_of([reference_of[each] for each in operation.answers])
    content = {"application/json": {"schema": answer}}
    if operation.events:
        content["text/event-stream"] = {"schema": _event(operation.events)}
    parameters = [
        {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in _PATH_PARAMETERS.items()
        if f"{{{name}}}" in operation.path
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": schema} for name, schema, text in operation.queries
    ]
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [TAG, operation.group],
        "security": [] if operation.is_open else _SECURITY,
        "parameters": parameters,
        "responses": {"200": {"description": "The answer", "content": content}, **_errors(operation, reference_of)},
    }
    if operation.body is not None:
        body = {"application/json": {"schema": reference_of[operation.body]}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _event(names: tuple[str, ...]) -> dict[str, Any]:
    """One event of a stream."""
    return {
        "type": "object",
        "properties": {
            "event": {"type": "string", "enum": list(names)},
            "data": {"type": "string", "description": "JSON text; of OpenAI's older APIs the last is '[DONE]'."},
        },
        "required": ["data"],
    }


def _errors(operation: Operation, reference_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    of_openai, of_anthropic = reference_of[answers.OpenAIError], reference_of[answers.AnthropicError]
    if operation.group == MODELS:
        schema = _one_of([of_openai, of_anthropic])
    else:
        schema = of_anthropic if operation.group == MESSAGES else of_openai
    content = {"application/json": {"schema": schema}}
    return {
        "4XX": {"description": "Refused; the message says why", "content": content},
        "5XX": {"description": "The service cannot answer now", "content": content},
    }


def _one_of(references: list[dict[str, Any]]) -> dict[str, Any]:
    return references[0] if len(references) == 1 else {"anyOf": references}

"""One OpenAPI document: DRF's own paths, and the inference paths from the schemas that parse them."""

from __future__ import annotations

from typing import Any

import msgspec

from api.protocols import chat, completions, embeddings, messages, responses
from api.protocols.chat.schema import Body as ChatBody
from api.protocols.completions import Body as CompletionsBody
from api.protocols.embeddings import Body as EmbeddingsBody
from api.protocols.messages.schema import Body as MessagesBody
from api.protocols.messages.schema import CountBody as MessagesCountBody
from api.protocols.responses.schema import Body as ResponsesBody

_BODIES: dict[str, tuple[str, type[Any]]] = {
    **dict.fromkeys(chat.PATHS, ("OpenAI Chat Completions", ChatBody)),
    **dict.fromkeys(completions.PATHS, ("OpenAI Completions (legacy)", CompletionsBody)),
    **dict.fromkeys(responses.PATHS, ("OpenAI Responses", ResponsesBody)),
    **dict.fromkeys(embeddings.PATHS, ("OpenAI Embeddings", EmbeddingsBody)),
    **dict.fromkeys(messages.PATHS, ("Anthropic Messages", MessagesBody)),
    **dict.fromkeys(messages.COUNT_PATHS, ("Tokens of an Anthropic Messages prompt", MessagesCountBody)),
}
_STREAMS = {"text/event-stream": {"schema": {"type": "string"}}}
_OBJECT = {"type": "object", "additionalProperties": True}
_SECURITY: list[dict[str, list[str]]] = [{"bearerKey": []}, {"headerKey": []}]


def add_inference_paths(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Post-processing hook of drf-spectacular, whose signature this is."""
    references, components = msgspec.json.schema_components(
        [body for _, body in _BODIES.values()], ref_template="#/components/schemas/{name}"
    )
    schemas = result.setdefault("components", {})
    schemas.setdefault("schemas", {}).update(components)
    schemas.setdefault("securitySchemes", {}).update(
        bearerKey={"type": "http", "scheme": "bearer"},
        headerKey={"type": "apiKey", "in": "header", "name": "x-api-key"},
    )
    for (path, (summary, _)), reference in zip(_BODIES.items(), references, strict=True):
        result["paths"][path] = {"post": _operation(path, summary, reference)}
    result["paths"]["/v1/models"] = {"get": _get("list_offered_models", "Models, in the shape of the asking dialect")}
    result["paths"]["/v1/models/{model}"] = {
        "get": {
            **_get("show_offered_model", "One model"),
            "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
        }
    }
    return result


def _operation(path: str, summary: str, reference: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _OBJECT}}
    if not path.endswith(("count_tokens", "embeddings")):
        content |= _STREAMS
    return {
        "operationId": path.strip("/").replace("/", "_"),
        "summary": summary,
        "tags": ["inference"],
        "security": _SECURITY,
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": {"200": {"description": "The answer", "content": content}, **_errors()},
    }


def _get(name: str, summary: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["inference"],
        "security": _SECURITY,
        "responses": {
            "200": {"description": "The answer", "content": {"application/json": {"schema": _OBJECT}}},
            **_errors(),
        },
    }


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": _OBJECT}}
    return {
        "4XX": {"description": "Refused; the message says why", "content": content},
        "5XX": {"description": "The service cannot answer now", "content": content},
    }

"""The small paths beside the inference ones: models, token counts, health, and clear refusals."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC
from typing import Any, Protocol
from urllib.parse import unquote

import orjson

from api.auth import Caller
from api.cors import answer_headers
from api.errors import ApiError
from api.gateway import Gateway
from api.http import (
    STREAM_HEADERS,
    Answer,
    ClientGone,
    Receive,
    Scope,
    Send,
    check_encoding,
    headers_of,
    read_body,
    shared_path_style,
)
from api.key_rules import check_model
from api.protocols.dialect import Counter, ErrorStyle
from api.protocols.errors import BadRequest
from api.protocols.request import GenerationRequest
from billing.usage.request_ids import new_request_id
from inference_grpc.errors import EngineError
from portal.catalog.selectors import ModelInfo

logger = logging.getLogger(__name__)

MODELS_PATH = "/v1/models"


class CountingDialect(Counter, Protocol):
    ERROR_STYLE: ErrorStyle


class Exchange:
    """A request that is answered with one JSON body."""

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send, style: ErrorStyle) -> None:
        self.gateway = gateway
        self.scope = scope
        self.headers = headers_of(scope)
        self.style = style
        self._receive = receive
        self._request_id = str(new_request_id())
        self.caller: Caller | None = None
        self._answer = Answer(send, self.headers, self._request_id, style)

    async def body(self) -> bytes:
        check_encoding(self.headers)
        limits = self.gateway.body_limit_bytes, self.gateway.body_timeout_s
        return await read_body(self._receive, self.headers, *limits)

    async def authenticate(self) -> Caller:
        caller = await self.gateway.keys.authenticate(self.scope, self.headers, self.style)
        self._answer.organization = caller.organization_slug
        self._answer.extra_headers += answer_headers(self.headers, caller.allowed_origins)
        self.caller = caller
        return caller

    async def stream(self, frames: bytes) -> None:
        """Answer with these SSE frames instead of a JSON value; `make` then returns None."""
        await self._answer.begin(200, STREAM_HEADERS)
        await self._answer.write(frames, is_last=True)

    async def answer(self, make: Callable[[], Awaitable[object]]) -> None:
        """`make` gives the JSON value, or raises what becomes the error answer."""
        try:
            value = await make()
            if not self._answer.has_begun:
                await self._answer.whole(200, value if isinstance(value, bytes) else orjson.dumps(value))
        except ClientGone:
            await self._answer.refuse_broken_body()
        except ApiError as error:
            await self._answer.refuse(error)
        except BadRequest as error:
            refusal = ApiError("invalid_request", error.message, param=error.param, wire_code=error.code)
            await self._answer.refuse(refusal)
        except Exception:  # the edge of the process: recorded and answered
            logger.exception("request_failed request_id=%s", self._request_id)
            await self._answer.refuse(
                ApiError("server_error", "The server failed; the operator can find it in the log.")
            )

    async def refuse(self, error: ApiError) -> None:
        await self._answer.refuse(error)

    async def answer_options(self, methods: list[str]) -> None:
        """Which methods there are, and to a browser's preflight whether a page may use them."""
        try:
            cross_origin = await self.gateway.origins.preflight_headers(self.headers, methods)
        except ApiError as error:
            await self._answer.refuse(error)
            return
        await self._answer.whole(204, b"", [("allow", allowed(methods)), *cross_origin])


async def list_models(exchange: Exchange) -> object:
    caller = await exchange.authenticate()
    models = [
        model
        for model in await exchange.gateway.catalog.models()
        if not caller.allowed_models or model.name in caller.allowed_models
    ]
    if exchange.style == "openai":
        return {"object": "list", "data": [_openai_model(model) for model in models]}
    data = [_anthropic_model(model) for model in models]
    return {
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": False,
    }


async def show_model(exchange: Exchange) -> object:
    caller = await exchange.authenticate()
    model = await exchange.gateway.catalog.find(unquote(exchange.scope["path"].removeprefix(f"{MODELS_PATH}/")))
    check_model(caller.allowed_models, model.name)
    return _openai_model(model) if exchange.style == "openai" else _anthropic_model(model)


def _openai_model(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.created_at.timestamp()),
        "owned_by": "organization-owner",
    }


def _anthropic_model(model: ModelInfo) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.display_name,
        "created_at": f"{model.created_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.max_output_tokens,
        "capabilities": None,
    }


async def count_tokens(exchange: Exchange, dialect: CountingDialect) -> bytes:
    await exchange.authenticate()
    request = dialect.parse_count(await exchange.body())
    return dialect.count_body(await count(exchange, request))


async def count(exchange: Exchange, request: GenerationRequest) -> int:
    """Prompt tokens, by the template and tokenizer of a deployment that serves the model. After `authenticate`."""
    model = await exchange.gateway.catalog.find(request.model)
    assert exchange.caller is not None
    check_model(exchange.caller.allowed_models, model.name)
    tried: set[int] = set()
    while (deployment := exchange.gateway.fleet.choose(model.name, tried)) is not None:
        tried.add(deployment.info.id)
        try:
            return await deployment.backend.count_tokens(request)
        except EngineError as error:
            logger.warning("count_failed deployment=%s code=%s", deployment.info.id, error.code)
            if error.code in ("invalid_request", "unsupported_schema"):
                raise ApiError(error.code, error.message, param=error.fields.get("param")) from error
    raise ApiError("engine_unavailable", f"No deployment of '{model.name}' can count tokens right now; try again.")


async def health(exchange: Exchange) -> object:
    """Whether this process takes calls. What it depends on is named, but does not make it unhealthy: it recovers."""
    if exchange.gateway.is_draining:
        raise ApiError("shutting_down", "This server is stopping.")
    return {"status": "ok", **exchange.gateway.dependencies()}


def allowed(methods: Iterable[str]) -> str:
    """The `Allow` header of a path with these methods."""
    return ", ".join([*methods, "OPTIONS"])


def style_of(path: str, headers: dict[bytes, bytes]) -> ErrorStyle:
    """The dialect in which an unknown path, a wrong method or a shared path is answered."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    if path.startswith(("/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings")):
        return "openai"
    return shared_path_style(headers)

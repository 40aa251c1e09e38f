"""The ASGI entrance: the API's own paths go to its consumers, past Django's middleware; the rest goes to Django."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType
from typing import Any

from api import endpoints, live
from api.consumer import InferenceConsumer
from api.endpoints import MODELS_PATH, Exchange, style_of
from api.errors import ApiError
from api.gateway import Gateway
from api.http import Answer, Message, Receive, Scope, Send, headers_of
from api.playground import PLAYGROUND_PATH, PlaygroundConsumer
from api.protocols import chat, completions, embeddings, messages, responses
from api.protocols.responses import compact
from api.responses_store.consumer import ResponsesConsumer
from api.responses_store.socket import ResponsesSocket
from api.responses_store.views import count_input_tokens, handlers_of
from billing.usage.request_ids import new_request_id

logger = logging.getLogger(__name__)

AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

CONSUMERS: dict[ModuleType, type[InferenceConsumer]] = {
    chat: InferenceConsumer,
    completions: InferenceConsumer,
    messages: InferenceConsumer,
    responses: ResponsesConsumer,
    compact: ResponsesConsumer,
    embeddings: InferenceConsumer,
}
INFERENCE: dict[str, Any] = {path: dialect for dialect in CONSUMERS for path in dialect.PATHS}
RESPONSES_PATH = "/v1/responses"
COUNTING: dict[str, Callable[[Exchange], Awaitable[object]]] = {
    **dict.fromkeys(messages.COUNT_PATHS, partial(endpoints.count_tokens, dialect=messages)),
    **dict.fromkeys(responses.COUNT_PATHS, count_input_tokens),
}
HEALTH_PATH = "/health"
# Paths that clients may expect, by their beginning, and what to do instead.
NOT_SERVED = {
    "/v1/v1": "the base URL of this client should end without /v1",
    "/v1/chat/completions/": "chat completions are not kept, with 'store' neither; responses are, see /v1/responses",
    "/v1/conversations": "conversation objects are not kept; chain responses with 'previous_response_id'",
    "/v1/messages/batches": "there are no batches; send each message on its own",
    "/v1/batches": "there are no batches; send each request on its own",
    "/v1/files": "files are not kept; send texts in the request",
    "/v1/images": "the models here make text only",
    "/v1/audio": "the models here make text only",
    "/v1/assistants": "there are no assistants; use /v1/responses",
    "/v1/threads": "there are no threads; use /v1/responses",
}
# Pages under /v1 that Django serves.
DJANGO_PATHS = frozenset({"/v1/openapi.json"})


class Application:
    """One per process: `config/asgi.py` makes it."""

    def __init__(self, django: AsgiApplication) -> None:
        self.gateway = Gateway()
        self._django = django

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] == RESPONSES_PATH:
            await self.gateway.ensure_started()
            await ResponsesSocket(self.gateway)(scope, receive, send)
        elif scope["path"] == live.OPERATIONS_PATH:
            await live.application(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method == "HEAD" and path == "/":
            # Some clients ask this first, to see whether anyone is there.
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        is_ours = path.startswith("/v1/") or path in ("/v1", HEALTH_PATH, PLAYGROUND_PATH)
        if not is_ours or (path in DJANGO_PATHS and method in ("GET", "HEAD")):
            await self._by_django(scope, receive, send)
            return
        await self.gateway.ensure_started()
        if method == "POST" and (dialect := INFERENCE.get(path)) is not None:
            await CONSUMERS[dialect](self.gateway, dialect)(scope, receive, send)
        elif method == "POST" and path == PLAYGROUND_PATH:
            await PlaygroundConsumer(self.gateway, chat)(scope, receive, send)
        else:
            await self._small(Exchange(self.gateway, scope, receive, send, style_of(path, headers_of(scope))))

    async def _by_django(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Django is silent where a body breaks off; a caller that is still there is told."""
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        await self._django(scope, receive, watched)
        if not has_begun:
            await Answer(send, headers_of(scope), str(new_request_id()), "openai").refuse_broken_body()

    async def _small(self, exchange: Exchange) -> None:
        path, method = exchange.scope["path"], exchange.scope["method"]
        handlers = self._handlers(path)
        if method == "OPTIONS" and handlers:
            await exchange.answer_options(list(handlers))
        elif not handlers:
            await exchange.refuse(_unknown(path))
        elif method in handlers:
            await exchange.answer(partial(handlers[method], exchange))
        else:
            allow = endpoints.allowed(handlers)
            await exchange.refuse(
                ApiError(
                    "method_not_supported",
                    f"{method} is not possible on {path}; use {allow}.",
                    headers=(("allow", allow),),
                )
            )

    def _handlers(self, path: str) -> dict[str, Callable[[Exchange], Awaitable[object]]]:
        """Method to handler of a small path; inference paths are listed for their method only."""
        if path in INFERENCE or path == PLAYGROUND_PATH:
            return {"POST": _served_elsewhere}
        if (counter := COUNTING.get(path)) is not None:
            return {"POST": counter}
        if path in DJANGO_PATHS:
            return dict.fromkeys(("GET", "HEAD"), _served_elsewhere)
        if path == MODELS_PATH:
            return {"GET": endpoints.list_models}
        if path.startswith(f"{MODELS_PATH}/") and not path.endswith("/"):
            return {"GET": endpoints.show_model}
        if path == HEALTH_PATH:
            return {"GET": endpoints.health, "HEAD": endpoints.health}
        return handlers_of(path)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.gateway.ensure_started()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.gateway.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _served_elsewhere(exchange: Exchange) -> object:
    raise AssertionError("Inference paths are served by their consumers, pages by Django.")


def _unknown(path: str) -> ApiError:
    hint = next((hint for start, hint in NOT_SERVED.items() if path.startswith(start)), None)
    if hint is None:
        hint = (
            "paths here have no slash at the end" if path.endswith("/") else "/api/docs/inference lists what there is"
        )
    return ApiError("not_found", f"There is nothing at {path[:200]}; {hint}.")

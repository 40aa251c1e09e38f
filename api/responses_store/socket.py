"""Responses over WebSocket, on the path of POST /v1/responses: each `response.create` is one call, in turn.

A call runs through the same consumer as over HTTP; this module is the wire in between. Every event is one text message.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from api.errors import ApiError
from api.gateway import Gateway
from api.http import Message, Receive, Scope, Send, headers_of
from api.protocols import responses
from api.protocols.decoding import mend
from api.responses_store.consumer import LocalResponses, ResponsesConsumer

# Calls that wait for the one under way; a client that sends more is cut off.
QUEUE_LIMIT = 16
_TOO_MANY = 1008


class ResponsesSocket:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._local = LocalResponses()
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_LIMIT)
        self._is_gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            await self._gateway.keys.authenticate(scope, headers_of(scope), "openai")
        except ApiError as error:
            await send(_text(_error(error.row.openai_status, error.row.openai_type, error.row.openai_code, str(error))))
            await send({"type": "websocket.close", "code": 1008})
            return
        work = asyncio.get_running_loop().create_task(self._work(scope, send))
        try:
            await self._read(receive, send)
        finally:
            self._is_gone.set()
            await asyncio.wait([work])

    async def _read(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            body = text.encode() if text is not None else message.get("bytes") or b""
            if self._waiting.full():
                await send({"type": "websocket.close", "code": _TOO_MANY, "reason": "too many calls are waiting"})
                break
            self._waiting.put_nowait(body)
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    async def _work(self, scope: Scope, send: Send) -> None:
        while (body := await self._waiting.get()) is not None:
            await self._call(scope, send, body)

    async def _call(self, scope: Scope, send: Send, body: bytes) -> None:
        try:
            event = orjson.loads(mend(body))
        except orjson.JSONDecodeError as error:
            await send(_text(_error(400, "invalid_request_error", "invalid_json", f"Not valid JSON: {error}.")))
            return
        if not isinstance(event, dict) or event.get("type") != "response.create":
            await send(
                _text(
                    _error(400, "invalid_request_error", "invalid_value", "'type' must be 'response.create'.", "type")
                )
            )
            return
        call = _Call(send, orjson.dumps({**event, "stream": True}), self._is_gone)
        http_scope = {**scope, "type": "http", "method": "POST", "headers": _call_headers(scope)}
        await ResponsesConsumer(self._gateway, responses, self._local)(http_scope, call.receive, call.send)
        if not call.succeeded:
            # What failed to continue cannot be trusted to continue later.
            self._local.forget(event.get("previous_response_id"))


def _call_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The handshake's headers, less those that speak of one request only."""
    dropped = (b"content-length", b"content-encoding", b"idempotency-key", b"x-request-id")
    return [(name, value) for name, value in scope["headers"] if name not in dropped]


class _Call:
    """The consumer's HTTP wire: the body comes at once, frames leave as messages."""

    def __init__(self, send: Send, body: bytes, is_gone: asyncio.Event) -> None:
        self._send = send
        self._body: bytes | None = body
        self._is_gone = is_gone
        self._status = 200
        self.succeeded = False

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._is_gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        body: bytes = message.get("body", b"")
        if self._status != 200:
            await self._send(_text({"type": "error", "status": self._status, "error": _with_code(body)}))
            return
        for frame in body.split(b"\n\n"):
            _, mark, data = frame.partition(b"\ndata: ")
            if mark:
                self.succeeded |= frame.startswith((b"event: response.completed", b"event: response.incomplete"))
                await self._send({"type": "websocket.send", "text": data.decode()})


def _with_code(body: bytes) -> dict[str, Any]:
    """The error of an HTTP body; over WebSocket its code is never null."""
    error: dict[str, Any] = orjson.loads(body)["error"]
    return {**error, "code": error["code"] or error["type"]}


def _error(status: int, type: str, code: str | None, message: str, param: str | None = None) -> dict[str, Any]:
    error = {"type": type, "code": code or type, "message": message, "param": param}
    return {"type": "error", "status": status, "error": error}


def _text(event: dict[str, Any]) -> Message:
    return {"type": "websocket.send", "text": orjson.dumps(event).decode()}

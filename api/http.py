"""One HTTP exchange on the ASGI wire: the request's headers and body in, one answer out, JSON or a stream."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from api.errors import ApiError
from api.protocols import messages, openai
from api.protocols.dialect import ErrorStyle

Scope = dict[str, Any]  # as ASGI defines it
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[str, str]]

OPENAI_VERSION = "2020-10-01"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    # A buffering proxy would hold tokens back.
    ("x-accel-buffering", "no"),
)
JSON_HEADERS = (("content-type", "application/json"),)


class ClientGone(Exception):
    """The body is not coming: the caller left, or sent what no server can read as one."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def shared_path_style(headers: dict[bytes, bytes]) -> ErrorStyle:
    """The dialect on a path that both APIs have."""
    return "anthropic" if b"anthropic-version" in headers or b"x-api-key" in headers else "openai"


class Answer:
    """What is sent back. After the caller left, sending does nothing; whether it left is `is_gone`."""

    def __init__(self, send: Send, headers: dict[bytes, bytes], request_id: str, style: ErrorStyle) -> None:
        self._send = send
        self.request_id = request_id
        self.style = style
        self.accepted_at = time.monotonic()
        self.organization = ""
        self.extra_headers: list[tuple[str, str]] = []
        self.has_begun = False
        self._status = 0
        self.is_gone = False
        self.last_sent_at = self.accepted_at
        # Set while the server holds a piece back because the client does not read.
        self.sending_since: float | None = None
        self._has_stalled = False
        self._content_type = ""
        self._recording: list[bytes] = []
        self._keep: Callable[[str, bytes], Awaitable[None]] | None = None
        self._sender: asyncio.Task[Any] | None = None
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        self._caller_id = given if _REQUEST_ID.fullmatch(given) else ""

    async def begin(self, status: int, headers: Headers) -> None:
        self.has_begun = True
        self._content_type = dict(headers).get("content-type", "")
        self._status = status
        milliseconds = int((time.monotonic() - self.accepted_at) * 1000)
        pairs = [
            *headers,
            ("x-request-id", self._caller_id or self.request_id),
            ("request-id", self.request_id),
            ("openai-processing-ms", str(milliseconds)),
            ("openai-version", OPENAI_VERSION),
            *self.extra_headers,
        ]
        if self.organization:
            pairs.append(("openai-organization", self.organization))
        await self._put(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
            }
        )

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """One send, whole frames. Returns late when the client reads slowly."""
        if self._keep is not None and self._status == 200:
            self._recording.append(data)
            if is_last:
                await self._keep(self._content_type, b"".join(self._recording))
        await self._put({"type": "http.response.body", "body": data, "more_body": not is_last})
        self.last_sent_at = time.monotonic()

    async def whole(self, status: int, body: bytes, headers: Headers = JSON_HEADERS) -> None:
        await self.begin(status, [*headers, ("content-length", str(len(body)))])
        await self.write(body, is_last=True)

    def keep_with(self, keep: Callable[[str, bytes], Awaitable[None]]) -> None:
        """Call `keep` with content type and body once the answer is whole, before its end leaves."""
        self._keep = keep

    def keep_nothing(self) -> None:
        """The answer ends in an error after all."""
        self._keep = None

    async def refuse(self, error: ApiError) -> None:
        """The error in the dialect of the route. Before the first byte only."""
        row = error.row
        is_openai = self.style == "openai"
        status = row.openai_status if is_openai else row.anthropic_status
        body = (openai.error_body if is_openai else messages.error_body)(
            status=status,
            type=row.openai_type if is_openai else row.anthropic_type,
            code=error.wire_code or row.openai_code,
            message=error.message if is_openai else error.anthropic_message,
            param=error.param,
            request_id=self.request_id,
        )
        headers = [*JSON_HEADERS, *error.headers]
        if status == 401:
            headers.append(("www-authenticate", "Bearer"))
        if row.should_retry is not None:
            headers.append(("x-should-retry", "true" if row.should_retry else "false"))
        retry_after_s = error.retry_after_s or row.retry_after_s
        if retry_after_s is not None:
            headers += [("retry-after", str(retry_after_s)), ("retry-after-ms", str(retry_after_s * 1000))]
        await self.whole(status, body, headers)

    async def refuse_broken_body(self) -> None:
        """To a caller that is still there: what it sent as a body was no body, such as a chunk without a size."""
        message = "The request body broke off before it was whole; see how it is sent."
        await self.refuse(ApiError("invalid_request", message, headers=(("connection", "close"),)))

    async def _put(self, message: Message) -> None:
        if self.is_gone:
            return
        self.sending_since = time.monotonic()
        task = self._sender = asyncio.current_task()
        assert task is not None
        try:
            await self._send(message)
        except (OSError, RuntimeError):
            # Servers differ in what they raise once the connection is closed.
            self.is_gone = True
        except asyncio.CancelledError:
            if not self._has_stalled:
                raise
            self._has_stalled = False
            task.uncancel()
        finally:
            self.sending_since = None

    def give_up_sending(self) -> None:
        """The client has not read for too long: end the send under way, and treat the client as gone."""
        if self._sender is not None and self.sending_since is not None:
            self.is_gone = self._has_stalled = True
            self._sender.cancel()


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises ApiError past a limit, ClientGone when it is not coming."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _whole_body(receive, headers, limit_bytes)
    except TimeoutError:
        message = (
            f"The request body did not arrive within {timeout_s:g} s, the limit here; send it faster or send less."
        )
        raise ApiError("request_timeout", message, headers=(("connection", "close"),)) from None


async def _whole_body(receive: Receive, headers: dict[bytes, bytes], limit_bytes: int) -> bytes:
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit_bytes: int) -> ApiError:
    # The rest of the body is not read, so the connection is of no more use.
    return ApiError(
        "request_too_large",
        f"The request body is larger than {limit_bytes} bytes, the limit here.",
        headers=(("connection", "close"),),
    )


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def check_encoding(headers: dict[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding != b"identity":
        raise ApiError(
            "unsupported_encoding",
            f"Request bodies in '{encoding.decode('latin-1')[:40]}' are not read; send them uncompressed.",
        )

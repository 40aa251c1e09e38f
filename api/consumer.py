"""One inference call from bytes to bytes.

`http.request` starts the work and `http.disconnect` cancels it: the backend is told, the events end within a step, and
the same task that would have answered writes the record of what was really produced. The task itself is never
cancelled by a caller that leaves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from channels.consumer import AsyncConsumer
from django.conf import settings

from api import refusals
from api.admission import rate_headers
from api.auth import Caller
from api.cors import answer_headers
from api.errors import ApiError
from api.fan_out import FanOut
from api.gateway import Gateway
from api.generation import Generation, refusal_of
from api.http import (
    STREAM_HEADERS,
    Answer,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
    check_encoding,
    headers_of,
    read_body,
    wait_for_disconnect,
)
from api.idempotency import services as idempotency
from api.idempotency.errors import IdempotencyConflict
from api.protocols.dialect import Dialect, Parsed, Writer
from api.protocols.errors import BadRequest
from api.stores import STORE_ERRORS, in_thread
from billing.usage.request_ids import new_request_id
from inference_grpc.events import Event, Failed, Finished, Started

logger = logging.getLogger(__name__)

# A stream's frames are at least this far apart: what arrives sooner waits and leaves joined, in one write.
JOIN_WINDOW_S = 0.008
SEND_TIMEOUT_S = 60.0
IDEMPOTENCY_KEY_LIMIT = 255
STOPPING = "The server is stopping; try again."


class InferenceConsumer(AsyncConsumer):  # type: ignore[misc]  # channels is untyped
    """A consumer on the low-level class: it sees the disconnect while it answers.

    `__call__` and `dispatch` are our own. The inherited ones open a channel layer and visit the database's thread at
    every event, which costs four times what a whole request costs here; this consumer uses neither.
    """

    def __init__(self, gateway: Gateway, dialect: Dialect[Any]) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._work: asyncio.Task[None] | None = None
        self._generation: Generation | FanOut | None = None
        self._parsed: Parsed | None = None
        self._writer: Writer | None = None
        self._started: Started | None = None
        self._organization_id = refusals.UNKNOWN
        # The call and the keep-alive both write; the opening is several writes.
        self._writing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._headers = headers_of(scope)
        self._request_id = new_request_id()
        self._answer = Answer(send, self._headers, str(self._request_id), self._dialect.ERROR_STYLE)
        try:
            check_encoding(self._headers)
            limits = self._gateway.body_limit_bytes, self._gateway.body_timeout_s
            body = await read_body(receive, self._headers, *limits)
        except ClientGone:
            await self._answer.refuse_broken_body()
            return
        except ApiError as error:
            await self._refuse(error)
            return
        await self.dispatch({"type": "http.request", "body": body})
        await self._watch(receive)

    async def dispatch(self, message: Message) -> None:
        if message["type"] == "http.request":
            self.http_request(message)
        else:
            self.http_disconnect(message)

    def http_request(self, message: Message) -> None:
        self._work = asyncio.get_running_loop().create_task(self._serve(message["body"]))

    def http_disconnect(self, message: Message) -> None:
        self._answer.is_gone = True
        if self._generation is not None:
            self._generation.cancel()

    async def _watch(self, receive: Receive) -> None:
        """Until the work is done, even where the caller leaves."""
        assert self._work is not None
        watcher = asyncio.get_running_loop().create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait([self._work, watcher], return_when=asyncio.FIRST_COMPLETED)
            if not self._work.done():
                await self.dispatch({"type": "http.disconnect"})
                await asyncio.wait([self._work])
        finally:
            watcher.cancel()

    # The call -----------------------------------------------------------------------------------

    async def _serve(self, body: bytes) -> None:
        with self._gateway.serving(self):
            try:
                await self._call(body)
            except ApiError as error:
                await self._refuse(error)
            except BadRequest as error:
                code = error.code or "invalid_request"
                await self._refuse(ApiError("invalid_request", error.message, param=error.param, wire_code=code))
            except Exception:  # the edge of the process: recorded, counted, answered
                logger.exception("request_failed request_id=%s", self._request_id)
                await self._refuse(ApiError("server_error", "The server failed; the operator can find it in the log."))
            finally:
                if self._generation is not None and not self._generation.is_finished:
                    self._gateway.spawn(self._generation.run_out())

    async def authenticate(self, body: bytes) -> Caller:
        return await self._gateway.keys.authenticate(self._scope, self._headers, self._dialect.ERROR_STYLE)

    async def prepare(self, caller: Caller, parsed: Any, body_bytes: int) -> int:
        """Complete a parsed body from what is kept for its caller; returns the bytes that bound the prompt."""
        return body_bytes

    async def keep(self, caller: Caller, parsed: Any, writer: Writer) -> None:
        """The answer is whole and its record durable; its end has not left yet."""

    async def _call(self, body: bytes) -> None:
        self._gateway.refuse_when_unable()
        caller = await self.authenticate(body)
        self._answer.organization = caller.organization_slug
        self._answer.extra_headers += answer_headers(self._headers, caller.allowed_origins)
        self._organization_id = caller.organization_id
        if key := self._headers.get(b"idempotency-key"):
            await self._run_once(caller, key.decode("latin-1"), body)
        else:
            await self._run(caller, body)

    async def _run_once(self, caller: Caller, key: str, body: bytes) -> None:
        """Under an Idempotency-Key: a repeat gets the first answer, and runs nothing."""
        if len(key) > IDEMPOTENCY_KEY_LIMIT:
            raise BadRequest(f"Idempotency-Key has {len(key)} characters; at most {IDEMPOTENCY_KEY_LIMIT} are kept.")
        claim: dict[str, Any] = {"project_id": caller.project_id, "key": key, "request_id": self._request_id}
        digest = idempotency.digest(self._scope["path"], body)
        try:
            kept = await in_thread(idempotency.claim, **claim, digest=digest, now=datetime.now(UTC))
        except IdempotencyConflict as error:
            raise ApiError("conflict", str(error)) from None
        except STORE_ERRORS as error:
            raise ApiError("store_unavailable", "Kept answers cannot be read right now; try again.") from error
        if kept is not None:
            headers = [("content-type", kept.content_type), ("idempotent-replayed", "true")]
            await self._answer.whole(kept.status, kept.body, headers)
            return
        is_kept = False

        async def keep(content_type: str, whole: bytes) -> None:
            nonlocal is_kept
            is_kept = True
            with self._without_store():
                await in_thread(idempotency.finish, **claim, status=200, content_type=content_type, body=whole)

        self._answer.keep_with(keep)
        try:
            await self._run(caller, body)
        finally:
            if not is_kept:
                with self._without_store():
                    await in_thread(idempotency.release, **claim)

    @contextmanager
    def _without_store(self) -> Iterator[None]:
        """The answer is made and paid for; that its key cannot be kept does not spoil it."""
        try:
            yield
        except STORE_ERRORS as error:
            logger.warning("idempotency_not_kept request_id=%s error=%s", self._request_id, type(error).__name__)

    async def _run(self, caller: Caller, body: bytes) -> None:
        parsed: Parsed = self._dialect.parse(body)
        self._parsed = parsed
        body_bytes = await self.prepare(caller, parsed, len(body))
        generation = await self._gateway.admit(
            caller,
            parsed.requests,
            protocol=self._dialect.NAME,
            body_bytes=body_bytes,
            request_id=self._request_id,
            accepted_at=self._answer.accepted_at,
        )
        self._generation = generation
        self._answer.extra_headers += rate_headers(generation.reservation, self._dialect.ERROR_STYLE)
        if self._answer.is_gone:
            generation.cancel()
        events = await generation.begin()
        if parsed.requests[0].stream:
            await self._stream(caller, generation, events)
        else:
            await self._plain(caller, generation, events)

    def _make_writer(self) -> Writer:
        """Late, because a retried attempt has another id."""
        assert self._generation is not None
        assert self._parsed is not None
        self._answer.request_id = str(self._generation.request_id)
        return self._dialect.make_writer(
            self._parsed,
            request_id=self._generation.request_id,
            model=self._parsed.requests[0].model,
            created=int(time.time()),
        )

    async def _plain(self, caller: Caller, generation: Generation | FanOut, events: list[Event]) -> None:
        writer = self._make_writer()
        while True:
            for event in events:
                if isinstance(event, Started):
                    writer.start(event)
                elif isinstance(event, Failed):
                    await generation.finish(event)
                    raise refusal_of(event)
                else:
                    writer.feed(event)
            if isinstance(last := events[-1], Finished):
                await generation.finish(last)
                if last.cancelled and self._answer.is_gone:
                    return
                if last.cancelled:
                    raise ApiError("shutting_down", STOPPING)
                await self.keep(caller, self._parsed, writer)
                await self._answer.whole(200, writer.result())
                return
            events = await generation.next()

    async def _stream(self, caller: Caller, generation: Generation | FanOut, events: list[Event]) -> None:
        """One write a step: all that has arrived, joined. The record is durable before the closing frames leave."""
        answer = self._answer
        while True:
            is_over = False
            if isinstance(last := events[-1], Finished | Failed):
                is_over = True
                await generation.finish(last)
            async with self._writing:
                writer = await self._begin_stream()
                frames = b"".join(map(self._frame, events))
                if isinstance(last, Finished) and not last.cancelled:
                    await self.keep(caller, self._parsed, writer)
                elif is_over:
                    answer.keep_nothing()
                await answer.write(frames, is_last=is_over)
            if is_over:
                return
            if answer.is_gone:
                generation.cancel()
            await generation.ready()
            wait_s = answer.last_sent_at + JOIN_WINDOW_S - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            events = await generation.next()

    def _frame(self, event: Event) -> bytes:
        writer = self._writer
        assert writer is not None
        if isinstance(event, Started):
            return b"" if self._started is not None else self._start(writer, event)
        if isinstance(event, Failed):
            refusal = refusal_of(event)
            return writer.fail(refusal.code, refusal.message)
        if isinstance(event, Finished) and event.cancelled:
            return writer.fail("shutting_down", STOPPING)
        return writer.feed(event)

    def _start(self, writer: Writer, event: Started) -> bytes:
        self._started = event
        return writer.start(event)

    async def _begin_stream(self) -> Writer:
        if self._writer is None:
            self._writer = self._make_writer()
            await self._answer.begin(200, STREAM_HEADERS)
        return self._writer

    # Beside the call ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Every second or so: keep a silent stream alive, give up a client that does not read."""
        answer = self._answer
        if answer.sending_since is not None:
            if now - answer.sending_since > SEND_TIMEOUT_S:
                logger.warning("send_timed_out request_id=%s", self._request_id)
                answer.give_up_sending()
        elif now - answer.last_sent_at > settings.STREAM_KEEPALIVE_S and self._is_streaming and not answer.is_gone:
            self._gateway.spawn(self._keep_alive())

    @property
    def _is_streaming(self) -> bool:
        generation = self._generation
        is_running = generation is not None and not generation.is_finished
        return is_running and self._parsed is not None and self._parsed.requests[0].stream

    async def _keep_alive(self) -> None:
        """Also a long prefill: then the answer begins before its first token, so that nobody takes it for dead."""
        generation = self._generation
        async with self._writing:
            if generation is None or generation.is_finished:
                return
            if self._writer is None and not generation.commit_to_attempt():
                return
            writer = await self._begin_stream()
            opening = b"" if self._started or not generation.started else self._start(writer, generation.started)
            await self._answer.write(opening + writer.keepalive())

    def stop(self) -> None:
        """The gateway stops: the call is cancelled as if its caller had left, and the caller is told."""
        if self._generation is not None:
            self._generation.cancel()

    async def _refuse(self, error: ApiError) -> None:
        self._gateway.refusals.count(error.code, self._organization_id)
        if not self._answer.has_begun:
            await self._answer.refuse(error)

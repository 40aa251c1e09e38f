"""Typed async client of an engine: one long-lived Session for all requests, and the unary calls with deadlines.

The Session's reader task only appends to per-request buffers and wakes whoever waits, so a caller that does not read
its stream never delays another. The writer task is the only one that writes. A broken session ends every open stream
with `Failed(code="engine_unavailable")` and the counts seen so far, and is opened again with a growing pause.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inference_grpc.absence import Absence
from inference_grpc.core.request import ChatPrompt, Request
from inference_grpc.errors import BY_CODE, DeadlineExceeded, EngineError, EngineUnavailable, SlowReader
from inference_grpc.events import (
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    Usage,
    join_fragments,
)
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.protos.v1 import inference_pb2_grpc as pb_grpc
from inference_grpc.wire import (
    CHANNEL_OPTIONS,
    ERROR_CODE_KEY,
    ERROR_FIELDS_KEY,
    FEATURES_KEY,
    FINGERPRINT_KEY,
    SESSION_KEY,
    chat_to_proto,
    event_from_row,
    request_to_proto,
    usage_from_proto,
)

logger = logging.getLogger(__name__)

SERVICE = "inference.v1.Inference"
CONNECT_TIMEOUT_S = 5.0
RETRY_S = (0.05, 2.0)  # first and longest pause between two attempts
OUTGOING_LIMIT = 10_000  # messages not yet written; a submit past it is refused
EVENT_BYTES = 64  # what an entry of a buffer counts on top of its text

T = TypeVar("T")
ReceiptStatus = Literal["completed", "cancelled", "failed", "lost"]
_RECEIPT_STATUS: dict[int, ReceiptStatus] = {
    pb.Receipt.COMPLETED: "completed",
    pb.Receipt.CANCELLED_BY_CLIENT: "cancelled",
    pb.Receipt.FAILED_IN_ENGINE: "failed",
    pb.Receipt.LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine says of itself. `engine_id` names its receipt journal and outlives restarts."""

    engine_id: str
    version: str
    model: str
    context_tokens: int
    max_sequences: int
    page_tokens: int
    pages_total: int
    pages_free: int
    running: int
    waiting: int
    precision: str
    draft_head: str
    device: str
    weights_sha256: str
    features: tuple[str, ...]
    prefix_hit_tokens: int
    prompt_tokens: int
    completion_tokens: int
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    runtime: str
    fingerprint: str
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    saturated: Mapping[str, int] = field(default_factory=dict)
    three_bit_pages_total: int = 0  # of a KV cache in two stages, whose other pages are in FP8
    three_bit_pages_free: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """One request as the engine's journal has it."""

    sequence: int
    request_id: str
    model: str
    tenant: str
    status: ReceiptStatus
    usage: Usage
    error_code: str
    started_unix_ms: int
    finished_unix_ms: int
    ttft_ms: int


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    engine_id: str
    receipts: list[Receipt]
    last_sequence: int  # the newest in the journal, not of the page


class EngineStream:
    """The events of one request, buffered. Ends with exactly one `Finished` or `Failed`."""

    def __init__(self, client: EngineClient, request_id: str, handle: int, buffer_bytes: int) -> None:
        self.request_id = request_id
        self.handle = handle
        self.usage = Usage()  # the counts of all that has arrived, read or not
        self.is_ended = False  # the final event has arrived; it may still be in the buffer
        self.is_estimated = False  # the engine's own final counts never came
        self.upstream_id = ""  # the engine goes by our request id
        self._client = client
        self._buffer_bytes = buffer_bytes
        self._events: list[Event] = []
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> list[Event]:
        """Everything that is queued, else what comes next; empty once the final event has been given.

        Consecutive deltas of one kind and choice are one event; their counts are cumulative, so nothing is lost by it.
        One caller at a time.
        """
        await self.ready()
        events, self._events, self._bytes = self._events, [], 0
        return events

    async def ready(self) -> None:
        """Wait until `next` would not. A caller that sends at intervals waits here, pauses, and then takes all."""
        if not self._events and not self.is_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def cancel(self) -> None:
        """Ask the engine to stop; a repeat is harmless. The stream still ends, with `Finished(cancelled=True)`."""
        if not self.is_ended:
            self._client._send_cancel(self.handle)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Event]:
        while events := await self.next():
            for event in events:
                yield event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.cancel()

    def _append(self, event: Event) -> None:
        if isinstance(event, Finished | Failed):
            self.usage = event.usage
            self._end(event)
            return
        if isinstance(event, Started):
            self.usage.prompt_tokens, self.usage.cached_tokens = event.prompt_tokens, event.cached_tokens
            event.fingerprint = self._client.fingerprint
        elif not isinstance(event, ChoiceFinished):
            if isinstance(event, ReasoningDelta):
                self.usage.reasoning_tokens += event.completion_tokens - self.usage.completion_tokens
            self.usage.completion_tokens = event.completion_tokens
        if not (self._events and join_fragments(self._events[-1], event)):
            self._events.append(event)
            self._bytes += EVENT_BYTES
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallArguments):
            # UTF-8 bytes; an ASCII string knows its length without being encoded.
            self._bytes += len(event.text) if event.text.isascii() else len(event.text.encode())
        if self._bytes > self._buffer_bytes:
            self._cut_off()
        else:
            self._wake()

    def _cut_off(self) -> None:
        self.cancel()
        self._client._forget(self.handle)
        self._fail(
            SlowReader.code,
            f"The stream was not read: {self._bytes} bytes wait for the caller and {self._buffer_bytes} may.",
        )

    def _fail(self, code: str, message: str) -> None:
        self.is_estimated = True
        self._end(Failed(code, message, self.usage))

    def _end(self, event: Finished | Failed) -> None:
        self._events.append(event)
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """All requests of this process to one engine. Make it where its event loop runs; it connects at the first use."""

    def __init__(self, address: str, *, buffer_bytes: int = 1 << 20, timeout_s: float = 10.0) -> None:
        """`buffer_bytes` bounds what one unread stream may hold, `timeout_s` is the deadline of a unary call."""
        self.address = address
        # Of the engine that took the latest session.
        self.fingerprint = ""
        self.features: frozenset[str] = frozenset()
        self._buffer_bytes = buffer_bytes
        self._timeout_s = timeout_s
        options: list[tuple[str, Any]] = [
            *CHANNEL_OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            # In spite of its name how long an engine may take to answer an attempt, however soon the next one comes.
            ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
        ]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._stub = pb_grpc.InferenceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._streams: dict[int, EngineStream] = {}
        self._last_handle = 0
        self._outgoing: deque[pb.SessionRequest] = deque()
        self._outgoing_ready = asyncio.Event()
        self._connected = asyncio.Event()
        self._down_because: str | None = None  # set while the engine is known to be out of reach
        self._session: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    async def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Wait until the session stands. Raises `EngineUnavailable` when it does not within `timeout_s`."""
        self._start()
        try:
            await asyncio.wait_for(self._connected.wait(), timeout_s)
        except TimeoutError:
            why = self._down_because or "no answer"
            raise EngineUnavailable(f"No session with {self.address} after {timeout_s} s: {why}") from None

    def submit(self, request: Request) -> EngineStream:
        """Send the request on the session; its events come on the returned stream, a refusal as `Failed` among them.

        Raises `EngineUnavailable` at once while the engine is known to be out of reach, or when too much waits to be
        sent.
        """
        self._start()
        if self._down_because is not None:
            raise EngineUnavailable(f"The engine at {self.address} cannot be reached: {self._down_because}")
        if len(self._outgoing) >= OUTGOING_LIMIT:
            raise EngineUnavailable(f"{OUTGOING_LIMIT} messages wait to be sent to {self.address}.")
        handle = self._next_handle()
        message = pb.SessionRequest(submit=request_to_proto(request, handle))
        stream = EngineStream(self, request.request_id, handle, self._buffer_bytes)
        self._streams[handle] = stream
        self._send(message)
        return stream

    async def get_info(self) -> EngineInfo:
        answer = await self._call(self._stub.GetInfo(pb.GetInfoRequest(), timeout=self._timeout_s))
        values = {field.name: getattr(answer, field.name) for field in answer.DESCRIPTOR.fields}
        lists = ("features", "drafted_per_position", "accepted_per_position")
        lists_as_tuples = {name: tuple(values[name]) for name in lists}
        return EngineInfo(**{**values, **lists_as_tuples, "saturated": dict(answer.saturated)})

    async def count_tokens(self, prompt: ChatPrompt | str) -> int:
        if isinstance(prompt, str):
            request = pb.CountTokensRequest(text=prompt)
        else:
            request = pb.CountTokensRequest(chat=chat_to_proto(prompt))
        answer = await self._call(self._stub.CountTokens(request, timeout=self._timeout_s))
        return int(answer.tokens)

    async def list_receipts(self, after: int = 0, limit: int = 0, acknowledge_through: int = 0) -> ReceiptPage:
        """Receipts after a sequence number, oldest first. Those up to `acknowledge_through` are forgotten before.

        `limit` 0 is the engine's own page size.
        """
        request = pb.ListReceiptsRequest(after_sequence=after, limit=limit, acknowledge_through=acknowledge_through)
        answer = await self._call(self._stub.ListReceipts(request, timeout=self._timeout_s))
        receipts = [
            Receipt(
                sequence=row.sequence,
                request_id=row.request_id,
                model=row.model,
                tenant=row.tenant,
                status=_RECEIPT_STATUS[row.status],
                usage=usage_from_proto(row.usage),
                error_code=row.error_code,
                started_unix_ms=row.started_unix_ms,
                finished_unix_ms=row.finished_unix_ms,
                ttft_ms=row.ttft_ms,
            )
            for row in answer.receipts
        ]
        return ReceiptPage(answer.engine_id, receipts, answer.last_sequence)

    async def is_serving(self) -> bool:
        """The standard health check: False when the engine drains, fails or cannot be reached."""
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            answer = await self._call(self._health.Check(request, timeout=self._timeout_s))
        except EngineError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """End the session and the channel. Open streams end with `Failed`; a repeat does nothing."""
        self._is_closed = True
        self._down_because = "the client is closed"
        if self._session is not None:
            self._session.cancel()
            await asyncio.wait([self._session])
        self._fail_streams("the client was closed")
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- the session ---

    def _start(self) -> None:
        if self._session is None and not self._is_closed:
            self._session = asyncio.get_running_loop().create_task(self._keep_session())

    def _next_handle(self) -> int:
        while True:
            self._last_handle = self._last_handle % 0xFFFF_FFFF + 1  # a uint32; 0 is Generate's
            if self._last_handle not in self._streams:
                return self._last_handle

    def _send(self, message: pb.SessionRequest) -> None:
        self._outgoing.append(message)
        self._outgoing_ready.set()

    def _send_cancel(self, handle: int) -> None:
        if self._down_because is None:
            self._send(pb.SessionRequest(cancel=pb.Cancel(handle=handle)))

    def _forget(self, handle: int) -> None:
        self._streams.pop(handle, None)

    async def _keep_session(self) -> None:
        pause_s = RETRY_S[0]
        absence = Absence(self.address)
        while not self._is_closed:
            call = self._stub.Session()
            reason = "the engine ended the session"
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    metadata = await _taken(call)
                self.fingerprint = metadata.get(FINGERPRINT_KEY, "")
                self.features = frozenset(metadata.get(FEATURES_KEY, "").split(","))
                pause_s = RETRY_S[0]
                self._down_because = None
                self._connected.set()
                absence.end()
                await self._use(call)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except EngineUnavailable as error:
                reason = error.message
            except TimeoutError:
                reason = f"no answer in {CONNECT_TIMEOUT_S} s"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # grpc.aio also raises this when the call itself was cancelled underneath us.
                reason = "the call was cancelled"
            except Exception:
                # The edge of this task: its death would leave every later request without an answer.
                logger.exception("engine_session_failed address=%s", self.address)
                reason = "the client could not read what the engine sent"
            finally:
                call.cancel()
                self._connected.clear()
            self._down_because = reason
            self._fail_streams(reason)
            absence.note(reason)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # spreads gateways, guards nothing
            pause_s = min(2 * pause_s, RETRY_S[1])
            self._down_because = None

    async def _use(self, call: Any) -> None:  # grpc.aio's call object is untyped
        writer = asyncio.create_task(self._write(call))
        try:
            while (step := await call.read()) is not grpc.aio.EOF:
                self._receive(step)
        finally:
            writer.cancel()
            # Not `await writer`: what ends it, and a cancellation of our own while we wait, could not be told apart.
            await asyncio.wait([writer])
            if not writer.cancelled():
                writer.exception()  # seen: the read says why the session broke

    async def _write(self, call: Any) -> None:
        while True:
            while self._outgoing:
                await call.write(self._outgoing.popleft())
            self._outgoing_ready.clear()
            await self._outgoing_ready.wait()

    def _receive(self, step: pb.SessionStep) -> None:
        details = {detail.row: detail for detail in step.details}
        choices = step.choices or repeat(0)
        rows = zip(step.handles, step.kinds, step.completion_tokens, step.texts, choices, strict=False)
        for row, (handle, kind, count, text, choice) in enumerate(rows):
            stream = self._streams.get(handle)
            if stream is None:
                continue  # cut off as a slow reader; its last rows were under way
            stream._append(event_from_row(kind, text, count, choice, details.get(row)))
            if stream.is_ended:
                self._streams.pop(handle, None)

    def _fail_streams(self, reason: str) -> None:
        streams, self._streams = self._streams, {}
        self._outgoing.clear()
        for stream in streams.values():
            stream._fail(EngineUnavailable.code, f"The session with {self.address} broke: {reason}")

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _engine_error(error) from error


async def _taken(call: Any) -> dict[str, str]:  # grpc.aio's call object is untyped
    """What the engine that took the session says of itself.

    Raises `EngineUnavailable` when there is no engine: of a failed call, grpc.aio gives empty metadata, silently.
    """
    metadata: dict[str, str] = dict(await call.initial_metadata() or ())
    if SESSION_KEY not in metadata:
        raise EngineUnavailable(f"{(await call.code()).name}: {await call.details()}")
    return metadata


def _engine_error(error: grpc.aio.AioRpcError) -> EngineError:
    metadata = {str(key): value for key, value in error.trailing_metadata() or ()}
    message = error.details() or error.code().name
    code = metadata.get(ERROR_CODE_KEY)
    if code is not None:
        fields = json.loads(metadata.get(ERROR_FIELDS_KEY) or "{}")
        failure = BY_CODE.get(str(code), EngineError)(message)
        failure.fields = fields
        return failure
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(message)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return EngineUnavailable(message)
    return EngineError(message, status=error.code().name)

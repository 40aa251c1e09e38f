"""The requests that are open in this process: from submit, through the backend, to the last row and the receipt.

Runs on the event loop; the backend's thread hands over its steps through `on_step`. The final row of a request is held
back until its receipt is on disk, so that the journal never knows less than a client was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import grpc

from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import Backend, Prepared, StepRows
from inference_grpc.core.request import Request
from inference_grpc.errors import (
    DeadlineExceeded,
    EngineError,
    EngineShutdown,
    EngineUnavailable,
    InvalidRequest,
    ModelNotServed,
    QueueFull,
)
from inference_grpc.events import (
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    Usage,
    join_fragments,
)
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.server.metrics import EngineMetrics
from inference_grpc.server.outbox import Outbox
from inference_grpc.server.receipts import Admission, Progress, Receipt, ReceiptJournal, ReceiptStatus
from inference_grpc.wire import request_from_proto

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # how often the counts of running requests are journalled


@dataclass(slots=True)
class OpenRequest:
    key: int
    handle: int
    outbox: Outbox
    request: Request
    started_unix_ms: int
    started_at: float  # time.monotonic, as the next two
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    usage: Usage = field(default_factory=Usage)
    journalled_tokens: int = 0
    is_admitted: bool = False  # the backend has it
    is_cancelled: bool = False
    is_past_deadline: bool = False
    deadline: asyncio.TimerHandle | None = None
    held: list[Event] = field(default_factory=list)  # of a `final_only` request, until it ends
    final: Finished | Failed | None = None  # set once it has ended and its receipt is being written


class Dispatcher:
    def __init__(
        self,
        backend: Backend,
        journal: ReceiptJournal,
        metrics: EngineMetrics,
        config: EngineConfig,
        workers: Executor,
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._metrics = metrics
        self._workers = workers
        self._queue_limit = config.queue_limit
        # Requests may be prepared or await their receipt beside those that run and wait in the backend.
        self._open_limit = config.queue_limit + config.max_sequences
        self._model = backend.info().model
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, OpenRequest] = {}
        self._last_key = 0
        self._steps: deque[tuple[float, StepRows]] = deque()
        self._is_delivery_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._is_stopped = False
        self._progress = self._loop.call_later(PROGRESS_S, self._note_progress)
        journal.on_written = self._on_written

    @property
    def open_requests(self) -> int:
        return len(self._open)

    # --- what a session asks ---

    def submit(self, outbox: Outbox, message: pb.GenerateRequest) -> None:
        """Take a request; its events, a refusal among them, go to `outbox`. A handle in use breaks the session off."""
        handle = message.handle
        if handle in outbox.open_keys:
            # Any answer would be taken for one to the other request of that handle.
            outbox.break_off(grpc.StatusCode.INVALID_ARGUMENT, f"Handle {handle} is open on this session already.")
            return
        try:
            self._check_capacity()
            request = self._checked(request_from_proto(message))
        except EngineError as error:
            self._metrics.outcomes["refused"] += 1
            outbox.add(handle, _failed(error), 0)
            outbox.wake()
            return
        self._last_key += 1
        item = OpenRequest(
            key=self._last_key,
            handle=handle,
            outbox=outbox,
            request=request,
            started_unix_ms=int(time.time() * 1000),
            started_at=time.monotonic(),
        )
        self._open[item.key] = item
        outbox.open_keys[handle] = item.key
        self._idle.clear()
        if request.deadline_unix_ms:
            delay_s = request.deadline_unix_ms / 1000 - time.time()
            item.deadline = self._loop.call_later(delay_s, self._pass_deadline, item)
        prepared = self._workers.submit(self._backend.prepare, request)
        prepared.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._admit, item, done))

    def cancel(self, outbox: Outbox, handle: int) -> None:
        key = outbox.open_keys.get(handle)
        if key is not None:
            self._stop(self._open[key])

    def drop(self, outbox: Outbox) -> None:
        """The session is gone: stop all its requests. They still leave a receipt each."""
        for key in outbox.open_keys.values():
            self._stop(self._open[key])

    def break_session(self, key: int, reason: str) -> None:
        """Break the session that a request came on, as a fault would."""
        item = self._open.get(key)
        if item is not None:
            item.outbox.break_off(grpc.StatusCode.UNAVAILABLE, reason)

    async def drain(self, grace_s: float) -> None:
        """Refuse what is new, let the rest finish for `grace_s`, fail what is left as `engine_shutdown`."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        if self._open:
            logger.warning("drain_grace_over open=%d", len(self._open))
        self._is_stopped = True
        await asyncio.to_thread(self._backend.close)
        await self._idle.wait()
        self._progress.cancel()

    def _check_capacity(self) -> None:
        if self._is_draining:
            raise EngineShutdown("The engine is going down and takes no new request; use another.")
        if self._journal.failure is not None:
            raise EngineUnavailable(f"The receipt journal cannot be written: {self._journal.failure}")
        if len(self._open) >= self._open_limit:
            raise QueueFull(
                f"{len(self._open)} requests are open and {self._open_limit} may; try again later.",
                waiting=self._backend.info().waiting,
                limit=self._queue_limit,
            )

    def _checked(self, request: Request) -> Request:
        if not request.request_id:
            request.request_id = str(uuid.uuid4())
        if request.model and request.model != self._model:
            raise ModelNotServed(
                f"This engine serves {self._model!r}, not {request.model!r}.", model=request.model, served=self._model
            )
        if request.deadline_unix_ms < 0:
            raise InvalidRequest("deadline_unix_ms is negative; 0 means none.", param="deadline_unix_ms")
        if request.deadline_unix_ms and request.deadline_unix_ms <= time.time() * 1000:
            raise DeadlineExceeded("The deadline had passed before the request came in.")
        return request

    # --- to the backend ---

    def _admit(self, item: OpenRequest, done: Future[Prepared]) -> None:
        try:
            prepared = done.result()
            if self._is_stopped:
                raise EngineShutdown("The engine went down before the request could run.")
            self._backend.submit(item.key, prepared)
        except EngineError as error:
            self._refuse(item, error)
            return
        except Exception:
            # The edge between the backend's code and the process: one request must not take the others down.
            logger.exception("prepare_failed request_id=%s", item.request.request_id)
            self._refuse(item, EngineError("The engine failed while it prepared the request; its log says more."))
            return
        item.is_admitted = True
        self._journal.admit(
            Admission(
                item.key,
                item.request.request_id,
                self._model,
                item.request.tenant,
                item.started_unix_ms,
                prepared.prompt_tokens,
            )
        )
        if item.is_cancelled:
            self._backend.cancel(item.key)

    def _refuse(self, item: OpenRequest, error: EngineError) -> None:
        # Nothing ran, so there is nothing to journal.
        self._metrics.outcomes["refused"] += 1
        self._close(item, _failed(error))
        item.outbox.wake()

    def _stop(self, item: OpenRequest) -> None:
        if item.is_cancelled:
            return
        item.is_cancelled = True
        if item.is_admitted and item.final is None:
            self._backend.cancel(item.key)

    def _pass_deadline(self, item: OpenRequest) -> None:
        item.is_past_deadline = True
        self._stop(item)

    # --- from the backend ---

    def on_step(self, rows: StepRows) -> None:
        """One step of the backend, from its own thread. Never blocks; steps queue up while the loop is busy."""
        self._steps.append((time.monotonic(), rows))
        if not self._is_delivery_due:
            self._is_delivery_due = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared first: a step that comes in from here on schedules the next delivery, if this one does not see it.
        self._is_delivery_due = False
        touched: set[Outbox] = set()
        steps = self._steps
        while steps:
            at, rows = steps.popleft()
            for key, event in rows:
                item = self._open.get(key)
                if item is not None and item.final is None:
                    self._take(item, event, at)
                    touched.add(item.outbox)
        for outbox in touched:
            outbox.wake()

    def _take(self, item: OpenRequest, event: Event, at: float) -> None:
        usage = item.usage
        if isinstance(event, Started):
            usage.prompt_tokens, usage.cached_tokens = event.prompt_tokens, event.cached_tokens
        elif isinstance(event, Finished | Failed):
            self._finish(item, event, at)
            return
        elif not isinstance(event, ChoiceFinished):
            if isinstance(event, ReasoningDelta):
                usage.reasoning_tokens += event.completion_tokens - usage.completion_tokens
            usage.completion_tokens = event.completion_tokens
            self._time_token(item, at)
        if item.request.final_only and not isinstance(event, Started):
            if not (item.held and join_fragments(item.held[-1], event)):
                item.held.append(event)
        else:
            item.outbox.add(item.handle, event, usage.completion_tokens)

    def _time_token(self, item: OpenRequest, at: float) -> None:
        if item.first_token_at:
            self._metrics.inter_token_latency.observe(at - item.last_token_at)
        else:
            item.first_token_at = at
            self._metrics.time_to_first_token.observe(at - item.started_at)
        item.last_token_at = at

    def _finish(self, item: OpenRequest, event: Finished | Failed, at: float) -> None:
        if item.deadline is not None:
            item.deadline.cancel()
        if item.is_past_deadline and isinstance(event, Finished) and event.cancelled:
            event = _failed(DeadlineExceeded("The deadline of the request has passed."), event.usage)
        if isinstance(event, Failed) and event.usage == Usage():
            event.usage = item.usage
        item.final = event
        status: ReceiptStatus = "completed"
        if isinstance(event, Failed):
            status = "failed"
        elif event.cancelled:
            status = "cancelled"
        self._count(item, event, status, at)
        request = item.request
        ttft_s = item.first_token_at - item.started_at if item.first_token_at else 0.0
        self._journal.finish(
            item.key,
            Receipt(
                request_id=request.request_id,
                model=self._model,
                tenant=request.tenant,
                status=status,
                usage=event.usage,
                error_code=event.code if isinstance(event, Failed) else "",
                started_unix_ms=item.started_unix_ms,
                finished_unix_ms=int(time.time() * 1000),
                ttft_ms=round(ttft_s * 1000),
            ),
        )

    def _count(self, item: OpenRequest, event: Finished | Failed, status: ReceiptStatus, at: float) -> None:
        metrics = self._metrics
        metrics.outcomes[event.code if isinstance(event, Failed) else status] += 1
        metrics.count_usage(event.usage)
        metrics.request_duration.observe(at - item.started_at)
        later_tokens = event.usage.completion_tokens - 1
        if item.first_token_at and later_tokens > 0:
            metrics.time_per_output_token.observe((item.last_token_at - item.first_token_at) / later_tokens)

    def _on_written(self, keys: list[int]) -> None:
        self._loop.call_soon_threadsafe(self._release, keys)

    def _release(self, keys: list[int]) -> None:
        touched: set[Outbox] = set()
        for key in keys:
            item = self._open[key]
            assert item.final is not None, "only ended requests are written"
            for event in item.held:
                item.outbox.add(item.handle, event, getattr(event, "completion_tokens", item.usage.completion_tokens))
            self._close(item, item.final)
            touched.add(item.outbox)
        for outbox in touched:
            outbox.wake()

    def _close(self, item: OpenRequest, final: Finished | Failed) -> None:
        item.outbox.add(item.handle, final, final.usage.completion_tokens)
        if item.deadline is not None:
            item.deadline.cancel()
        del self._open[item.key]
        item.outbox.open_keys.pop(item.handle, None)
        if not self._open:
            self._idle.set()

    def _note_progress(self) -> None:
        progress = []
        for item in self._open.values():
            if item.is_admitted and item.final is None and item.usage.completion_tokens != item.journalled_tokens:
                item.journalled_tokens = item.usage.completion_tokens
                usage = item.usage
                progress.append(
                    Progress(
                        item.key,
                        Usage(
                            usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
                        ),
                    )
                )
        if self._journal.failure is None:
            self._journal.note_progress(progress)
        self._progress = self._loop.call_later(PROGRESS_S, self._note_progress)


def _failed(error: EngineError, usage: Usage | None = None) -> Failed:
    return Failed(error.code, error.message, usage or Usage(), error.fields)

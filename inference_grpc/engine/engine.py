"""The loop: take what was submitted, schedule, run, commit, tell. One thread owns the device and all state below."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.cache.stale import held
from inference_grpc.core.backend import StepRows
from inference_grpc.core.batch import Batch, End, SampledToken
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine.requests import OpenRequest, PreparedRequest
from inference_grpc.engine.runner import Runner
from inference_grpc.engine.scheduler import Scheduler
from inference_grpc.errors import DeadlineExceeded, DeviceFault, EngineError, EngineShutdown, QueueFull
from inference_grpc.events import Event

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineCounters:
    """Since the start. Written by the loop only."""

    steps: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    completion_tokens: int = 0
    faults: int = 0
    # Drafts, and those of them that proved right: by their place among the drafts of one sequence in one step.
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


class Engine:
    """`submit`, `cancel` and `close` may be called from any thread; they only leave a note and wake the loop."""

    def __init__(
        self,
        runner: Runner,
        cache: CacheCoordinator,
        scheduler: Scheduler,
        *,
        queue_limit: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = EngineCounters()
        self.cache = cache
        self.scheduler = scheduler
        self._runner = runner
        if runner.runs_beside:
            runner.meanwhile = self._tell  # what the last step said leaves while the GPU is at the next
            # A step takes at most one new page a sequence; with so many there is no preemption.
            runner.may_run_ahead = lambda: cache.may_grow(len(scheduler.running))
        self._queue_limit = queue_limit
        self._clock = clock
        self._open: dict[int, OpenRequest] = {}
        self._arrivals = 0
        self._rows: StepRows = []
        self._on_step: Callable[[StepRows], None] = lambda rows: None
        self._on_fault: Callable[[], None] = lambda: None
        self._has_failed = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

        # Shared with the callers' threads, under the lock of the condition.
        self._wake = threading.Condition()
        # What callers want, in order: (key, the request to open, or None to cancel it).
        self._notes: deque[tuple[int, PreparedRequest | None]] = deque()
        self._not_started = 0  # requests that were submitted and have not been admitted
        self._is_closing = False

    @property
    def waiting(self) -> int:
        """Requests that were submitted and have not been admitted."""
        return self._not_started

    def start(self, on_step: Callable[[StepRows], None], on_fault: Callable[[], None] = lambda: None) -> None:
        self._on_step, self._on_fault = on_step, on_fault
        self._thread.start()

    def submit(self, key: int, prepared: PreparedRequest) -> None:
        with self._wake:
            if self._is_closing:
                raise EngineShutdown("The engine is shutting down.")
            if self._not_started >= self._queue_limit:
                raise QueueFull(
                    f"{self._not_started} requests are waiting, and no more may (ENGINE_QUEUE_LIMIT); try again later.",
                    waiting=self._not_started,
                    limit=self._queue_limit,
                )
            self._not_started += 1
            self._notes.append((key, prepared))
            self._wake.notify()

    def cancel(self, key: int) -> None:
        with self._wake:
            self._notes.append((key, None))
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def check_integrity(self) -> None:
        """Raises AssertionError if a page is lost or miscounted. Only between steps, or when closed."""
        self.cache.check_integrity(self.scheduler.sequences())

    def _loop(self) -> None:
        while self._wait_for_work():
            self.step()
        for request in list(self._open.values()):
            self._fail(request, EngineShutdown("The engine was shut down before the request ended."))
        self._tell()
        if self._has_failed:
            self._on_fault()

    def _wait_for_work(self) -> bool:
        """Blocks while there is nothing to do. False: the engine closes."""
        with self._wake:
            while not (self._is_closing or self._notes or self._open):
                self._wake.wait()
            self._take_notes()
            return not self._is_closing

    def _take_notes(self) -> None:
        while self._notes:
            key, prepared = self._notes.popleft()
            if prepared is not None:
                request = OpenRequest(key, prepared, self._arrivals)
                self._arrivals += len(request.sequences)
                self._open[key] = request
                for sequence in request.sequences:
                    self.scheduler.add(sequence)
            elif key in self._open:
                self._end(self._open[key], self._open[key].cancel())

    def step(self) -> None:
        """One round. What is wrong with a request ends that request; what is wrong with the device ends the loop."""
        self._expire()
        try:
            batch = self.scheduler.schedule()
            if batch.chunks:
                self._start_admitted(batch)
                self._runner.draft(batch)
                logits = self._runner.run(batch)
                self.scheduler.commit(batch)
                self._take_tokens(batch, logits)
            elif self.scheduler.has_work:
                raise RuntimeError("nothing can be scheduled although sequences wait")
        except Exception as error:  # the edge of the device thread: anything may come out of a driver
            self._fault(error)
        if not (self._runner.runs_beside and self.scheduler.has_work):
            self._tell()

    def _expire(self) -> None:
        now_ms = self._clock() * 1000
        for request in list(self._open.values()):
            if 0 < request.deadline_unix_ms <= now_ms:
                self._fail(request, DeadlineExceeded("The deadline of the request has passed."))

    def _start_admitted(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            request = self._open[chunk.sequence.key]
            if request.has_started:
                continue
            cached_tokens = chunk.sequence.cached_tokens or 0
            self._note_started()
            self.counters.prompt_tokens += chunk.sequence.prompt_tokens
            self.counters.prefix_hit_tokens += cached_tokens
            self._emit(request, request.start(cached_tokens))

    def _take_tokens(self, batch: Batch, logits: torch.Tensor) -> None:
        """A token for each sequence, drawn at the end of what is certain. Where it is the one that was drafted, the
        logits after it are there already, and the next token is taken from them just as a step of its own would."""
        self.counters.steps += 1
        ends = batch.ends
        for end in ends:
            _count(self.counters.drafted, range(len(end.drafts)))
        while ends:
            sampled = self._runner.sample(batch, logits, ends)
            followed = [self._take(end, token) for end, token in zip(ends, sampled, strict=True)]
            ends = [end for end in followed if end is not None]

    def _take(self, end: End, token: SampledToken | EngineError) -> End | None:
        """The end one token on, if the sequence goes on and its logits there are known."""
        sequence, request = end.sequence, self._open.get(end.sequence.key)
        if request is None:  # another choice of it failed in this very step
            return None
        if isinstance(token, DeviceFault):
            self._discard(request, sequence, token)
            return None
        if isinstance(token, EngineError):
            self._fail(request, token)
            return None
        self.counters.completion_tokens += 1
        try:
            events, is_over = request.take(sequence, token)
        except Exception as error:  # one request's text or constraint must not end the others
            logger.exception("request_failed request_id=%s", request.request_id)
            self._fail(request, EngineError(f"The output could not be processed ({type(error).__name__})."))
            return None
        after = end.after(token.token_id)
        if after is not None:
            _count(self.counters.accepted, [end.accepted])
        if end.accepted and (is_over or after is None):
            self.scheduler.accept(end)
        if not request.unfinished:
            self._end(request, events)
            return None
        if is_over:
            self.scheduler.remove(sequence)
        self._emit(request, events)
        return None if is_over else after

    def _discard(self, request: OpenRequest, sequence: Sequence, error: DeviceFault) -> None:
        """Its logits are not finite, so its pages may hold such values, and a masked key still spreads them."""
        self.counters.faults += 1
        logger.error("logits_not_finite request_id=%s", request.request_id)
        # Pages that others hold are left alone: they were sound when they were shared. One in three bits is written
        # whole before anybody reads it.
        own = [page_id for page_id in held(sequence.page_ids) if self.cache.pool.references(page_id) == 1]
        self._runner.clear_pages(own)
        self._fail(request, error)
        self.cache.forget_prefixes()

    def _fault(self, error: Exception) -> None:
        """The step broke, and with it what is known of the pages and of the device: every open request fails, and the
        process has to be made anew."""
        self.counters.faults += 1
        self._has_failed = True
        with self._wake:
            self._is_closing = True
        logger.exception("device_fault open_requests=%d", len(self._open))
        for request in list(self._open.values()):
            self._fail(request, DeviceFault(f"The device failed ({type(error).__name__}); try again."))

    def _fail(self, request: OpenRequest, error: EngineError) -> None:
        self._end(request, request.fail(error))

    def _end(self, request: OpenRequest, events: list[Event]) -> None:
        for sequence in request.sequences:
            self.scheduler.remove(sequence)
        del self._open[request.key]
        if not request.has_started:
            self._note_started()
        self._emit(request, events)

    def _note_started(self) -> None:
        with self._wake:
            self._not_started -= 1

    def _emit(self, request: OpenRequest, events: list[Event]) -> None:
        self._rows += [(request.key, event) for event in events]

    def _tell(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            self._on_step(rows)
        except Exception:  # the reader's fault; the other readers' requests go on
            logger.exception("step_not_delivered rows=%d", len(rows))


def _count(counts: list[int], places: Iterable[int]) -> None:
    for place in places:
        if place == len(counts):
            counts.append(0)
        counts[place] += 1

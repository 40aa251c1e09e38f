"""The scripted engine's step loop, on a thread of its own: one token of every due sequence a step."""

from __future__ import annotations

import heapq
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import BackendInfo, Prepared, StepRows
from inference_grpc.core.request import ChatPrompt, Request
from inference_grpc.errors import EngineShutdown, QueueFull
from inference_grpc.events import (
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from inference_grpc.scripted.faults import Faults
from inference_grpc.scripted.scenario import Scenario
from inference_grpc.scripted.script import Script, Token, count_tokens, write_script

logger = logging.getLogger(__name__)

FEATURES = ["chat", "text", "tokens", "tools", "json_schema", "regex", "logprobs", "reasoning"]
FOREVER = float("inf")


@dataclass(slots=True)
class _Running:
    key: int
    script: Script
    next_at: float  # time.monotonic of its next token
    usage: Usage = field(default_factory=Usage)
    position: int = 0  # tokens that each choice has said, unless it ended before
    has_started: bool = False
    tick: int = 0  # of a paced request: its next token's place on the grid of its pace


class ScriptedBackend:
    """The seam's `Backend`. Prompts order their answers; see README.md."""

    def __init__(self, config: EngineConfig, scenario: Scenario) -> None:
        self.faults = Faults()
        self._config = config
        self._scenario = scenario
        self._on_step: Callable[[StepRows], None] = lambda rows: None
        self._changed = threading.Condition()
        # The next four are changed under the condition's lock only.
        self._waiting: list[tuple[int, int, Script]] = []  # a heap of (-priority, key, script)
        self._cancelled: set[int] = set()
        self._is_closing = False
        self._running: dict[int, _Running] = {}
        self._totals = Usage()
        self._steps = 0
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)

    def start(self, on_step: Callable[[StepRows], None], on_fault: Callable[[], None] = lambda: None) -> None:
        # There is no device that could fail: scripted faults concern requests, sessions or the whole process.
        del on_fault
        self._on_step = on_step
        self._thread.start()

    def prepare(self, request: Request) -> Script:
        return write_script(request, self._scenario)

    def submit(self, key: int, prepared: Prepared) -> None:
        assert isinstance(prepared, Script), "comes from prepare()"
        receipt_fault = prepared.directives.receipt
        with self._changed:
            if self._is_closing:
                raise EngineShutdown("The engine is going down.")
            limit = self._config.queue_limit
            # Those that the next step lets in do not wait.
            if len(self._waiting) + len(self._running) >= limit + self._config.max_sequences:
                raise QueueFull(f"{len(self._waiting)} requests wait and {limit} may.", waiting=limit, limit=limit)
            if receipt_fault is not None:
                self.faults.receipts[prepared.request.request_id] = receipt_fault
            heapq.heappush(self._waiting, (-prepared.request.priority, key, prepared))
            self._changed.notify()

    def cancel(self, key: int) -> None:
        with self._changed:
            self._cancelled.add(key)
            self._changed.notify()

    def count_tokens(self, prompt: ChatPrompt | str) -> int:
        return count_tokens(prompt)

    def info(self) -> BackendInfo:
        config = self._config
        with self._changed:
            running, waiting = list(self._running.values()), len(self._waiting)
        # As if each sequence held the pages of its tokens.
        pages_used = sum(
            -(-(item.script.prompt_tokens + item.usage.completion_tokens) // config.page_tokens) for item in running
        )
        return BackendInfo(
            model=config.model,
            context_tokens=self._scenario.context_tokens,
            max_sequences=config.max_sequences,
            page_tokens=config.page_tokens,
            pages_total=config.pages,
            pages_free=max(0, config.pages - pages_used),
            running=len(running),
            waiting=waiting,
            precision="scripted",
            device="none",
            features=[*FEATURES, *(["embeddings"] if self._scenario.embedding_dimensions else [])],
            prefix_hit_tokens=self._totals.cached_tokens,
            prompt_tokens=self._totals.prompt_tokens,
            completion_tokens=self._totals.completion_tokens,
            steps=self._steps,
        )

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    # --- the engine's thread ---

    def _run(self) -> None:
        step_s = self._scenario.step_s
        while True:
            with self._changed:
                rows = self._take_orders()
                if self._is_closing:
                    break
                now = time.monotonic()
                if not rows:
                    next_at = min((item.next_at for item in self._running.values()), default=FOREVER)
                    if next_at > now:
                        self._changed.wait(None if next_at == FOREVER else next_at - now)
                        continue
            for item in list(self._running.values()):
                if item.next_at <= now:
                    self._advance(item, now, rows)
            self._steps += 1
            self._on_step(rows)
            # Lets other threads in, also when steps take no time.
            time.sleep(step_s)
        message = "The engine went down while the request ran."
        rows += [(key, Failed(EngineShutdown.code, message, item.usage)) for key, item in self._running.items()]
        rows += [(key, Failed(EngineShutdown.code, message)) for _, key, _ in self._waiting]
        self._running.clear()
        self._waiting.clear()
        if rows:
            self._on_step(rows)

    def _take_orders(self) -> StepRows:
        """Cancel what is to be cancelled and let waiting requests in. Holds the lock."""
        rows: StepRows = []
        if self._cancelled:
            cancelled, self._cancelled = self._cancelled, set()
            for key in cancelled & self._running.keys():
                item = self._running[key]
                if not item.script.directives.ignores_cancel:
                    self._end_cancelled(item, rows)
            waiting = [entry for entry in self._waiting if entry[1] not in cancelled]
            if len(waiting) < len(self._waiting):
                rows += [(key, Finished(Usage(), cancelled=True)) for _, key, _ in self._waiting if key in cancelled]
                heapq.heapify(waiting)
                self._waiting = waiting
        while self._waiting and len(self._running) < self._config.max_sequences:
            _, key, script = heapq.heappop(self._waiting)
            self._running[key] = _Running(key, script, time.monotonic() + script.directives.first_token_s)
        return rows

    def _end_cancelled(self, item: _Running, rows: StepRows) -> None:
        del self._running[item.key]
        if item.has_started:
            for index, choice in enumerate(item.script.choices):
                if item.position < len(choice.tokens):
                    rows.append((item.key, ChoiceFinished("cancelled", None, index)))
        rows.append((item.key, Finished(item.usage, cancelled=True)))

    def _advance(self, item: _Running, now: float, rows: StepRows) -> None:
        """Everything that is due of one sequence: its start, its next token, as many more as a paced one is behind."""
        orders = item.script.directives
        if not item.has_started:
            if orders.fail_code is not None and orders.fail_at is None:
                self._fail(item, rows)
                return
            self._start(item, rows)
        pace_s = 1 / orders.tokens_per_s if orders.tokens_per_s else 0.0
        while item.next_at <= now:
            if self._meets_fault(item, rows):
                return
            is_over = self._say(item, rows)
            if is_over:
                self._finish(item, rows)
                return
            if not pace_s:
                item.next_at = now + self._scenario.step_s
                break
            # On a grid shared by all of one pace, as the sequences of a real engine share its steps. Whole ticks: a
            # sum or a quotient of floats may round to the tick just passed.
            item.tick = (item.tick or int(item.next_at / pace_s)) + 1
            item.next_at = item.tick * pace_s

    def _start(self, item: _Running, rows: StepRows) -> None:
        script = item.script
        item.has_started = True
        item.usage.prompt_tokens, item.usage.cached_tokens = script.prompt_tokens, script.cached_tokens
        self._totals.prompt_tokens += script.prompt_tokens
        self._totals.cached_tokens += script.cached_tokens
        rows.append((item.key, Started(script.prompt_tokens, script.cached_tokens)))
        if script.echo:
            rows += [(item.key, TextDelta(script.echo, 0, index)) for index in range(len(script.choices))]

    def _say(self, item: _Running, rows: StepRows) -> bool:
        """The next token of every choice that has one; True when none has more."""
        is_over = True
        for index, choice in enumerate(item.script.choices):
            if item.position < len(choice.tokens):
                token = choice.tokens[item.position]
                item.usage.completion_tokens += 1
                item.usage.reasoning_tokens += token.kind == "reasoning"
                self._totals.completion_tokens += 1
                rows.append((item.key, _event(token, item.usage.completion_tokens, index)))
            if item.position + 1 == len(choice.tokens) or (not choice.tokens and item.position == 0):
                rows.append((item.key, ChoiceFinished(choice.reason, choice.matched_stop, index)))
            is_over = is_over and item.position + 1 >= len(choice.tokens)
        item.position += 1
        return is_over

    def _meets_fault(self, item: _Running, rows: StepRows) -> bool:
        orders, tokens = item.script.directives, item.usage.completion_tokens
        if orders.fail_at is not None and tokens >= orders.fail_at:
            self._fail(item, rows)
            return True
        if orders.stall_at is not None and tokens >= orders.stall_at:
            item.next_at = FOREVER
            return True
        if orders.break_at is not None and tokens >= orders.break_at:
            item.next_at = FOREVER
            self.faults.break_session(item.key)
            return True
        if orders.exit_at is not None and tokens >= orders.exit_at:
            # What was said so far is sent and journalled first; then the process is gone as if the kernel had shot it.
            self._on_step(rows)
            time.sleep(0.2)
            logger.warning("exit_ordered key=%d", item.key)
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def _fail(self, item: _Running, rows: StepRows) -> None:
        code = item.script.directives.fail_code
        assert code is not None
        with self._changed:
            del self._running[item.key]
        rows.append((item.key, Failed(code, "Failed by order of the prompt.", item.usage, {"ordered": "FAIL"})))

    def _finish(self, item: _Running, rows: StepRows) -> None:
        with self._changed:
            del self._running[item.key]
        rows.append((item.key, Finished(item.usage)))


def _event(token: Token, completion_tokens: int, choice: int) -> Event:
    match token.kind:
        case "text":
            return TextDelta(token.text, completion_tokens, choice, token.logprobs)
        case "reasoning":
            return ReasoningDelta(token.text, completion_tokens, choice)
        case "arguments":
            return ToolCallArguments(token.text, completion_tokens, choice)
        case "call":
            call = token.call
            assert call is not None
            return ToolCallStart(token.call_index, call.id, call.name, completion_tokens, choice)

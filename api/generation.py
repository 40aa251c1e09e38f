"""One generation from its reservation to its finished record: attempts, the opening row, the end that happens once.

An attempt is one request at one deployment, with a usage record and an engine receipt under the same id. A deployment
that fails before the first token ends its attempt (a failed record, cost 0) and the next one is tried under a new id;
the hold follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from api import metrics
from api.admission import Demand, Reservation
from api.auth import Caller
from api.backends.choice import BROKEN, MAX_ATTEMPTS, RETRYABLE, Deployment
from api.backends.stream import EventStream
from api.errors import TABLE, ApiError
from api.metering import GATEWAY_ID
from api.protocols import messages, openai
from api.protocols.request import GenerationRequest
from billing.pricing.rating import hold_nano, rate
from billing.pricing.selectors import PriceInfo
from billing.usage.request_ids import attempt_of, next_attempt
from billing.usage.services import END_USER_LIMIT, FinishedRecord, OpenRecord, Statement
from inference_grpc.errors import EngineError
from inference_grpc.events import ChoiceFinished, Event, Failed, Finished, Started, Usage
from portal.api_keys.redaction import redact
from portal.catalog.selectors import ModelInfo

if TYPE_CHECKING:
    from api.gateway import Gateway

logger = logging.getLogger(__name__)

# A cancelled engine answers within a step; past this the counts seen so far are written, as estimated.
CANCEL_TIMEOUT_S = 30.0
OPEN_TIMEOUT_S = 30.0
# The chat template's own tokens, at most: a default system prompt, the tool instructions, the marks of a message.
TEMPLATE_TOKENS = 1024
MESSAGE_TOKENS = 16
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request may cost at most, fixed before it starts."""

    max_tokens: int  # as asked, or the model's default; not yet cut to the model's cap
    prompt_bound: int
    demand: Demand


def terms_of(request: GenerationRequest, model: ModelInfo, price: PriceInfo, body_bytes: int) -> Terms:
    """A token is at least one byte of the body, so the body's length bounds the prompt. The tools' schemas are counted
    twice: the template may print them with more spaces than they came with."""
    max_tokens = model.default_max_output_tokens if request.max_tokens is None else request.max_tokens
    messages = len(request.messages or ())
    bound = body_bytes * (2 if request.tools else 1) + TEMPLATE_TOKENS + MESSAGE_TOKENS * messages
    prompt_bound = min(bound, model.context_tokens)
    output_bound = min(max_tokens, model.max_output_tokens) * request.n
    demand = Demand(
        model=model.name,
        hold_nano=hold_nano(price, prompt_bound, output_bound),
        input_tokens=body_bytes // BYTES_PER_TOKEN,
        output_tokens=output_bound,
        currency=price.currency,
    )
    return Terms(max_tokens, prompt_bound, demand)


@dataclass(slots=True)
class _Attempt:
    request_id: UUID
    deployment: Deployment
    stream: EventStream
    opened: asyncio.Future[None]
    started_at: float


def _statement(attempt: _Attempt, usage: Usage) -> Statement | None:
    """What an upstream without a journal said of the request; None where it said nothing."""
    if attempt.deployment.backend.keeps_receipts or attempt.stream.is_estimated or not attempt.stream.upstream_id:
        return None
    return Statement(
        source=f"upstream:{attempt.deployment.info.id}",
        upstream_id=attempt.stream.upstream_id[:200],
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=min(usage.reasoning_tokens, usage.completion_tokens),
    )


class Generation:
    """Events over attempts: `begin`, then `next` until the last event, then `finish`. One task does all of it.

    `cancel` may come at any time, from anywhere: the events then end soon, and the same task finishes the record with
    what was really produced. So a caller that leaves needs no other path than a caller that stays.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        caller: Caller,
        request: GenerationRequest,
        protocol: str,
        model: ModelInfo,
        price: PriceInfo,
        terms: Terms,
        reservation: Reservation,
        accepted_at: float,
    ) -> None:
        self._gateway = gateway
        self._caller = caller
        self._request = request
        self._protocol = protocol
        self._model = model
        self._price = price
        self._terms = terms
        self.reservation = reservation
        self.request_id = reservation.request_id
        self._accepted_at = accepted_at
        self._deadline_unix_ms = int((time.time() + gateway.request_timeout_s) * 1000)
        self._attempt: _Attempt | None = None
        self._tried: set[int] = set()
        self._may_retry = True
        self._first_token_at: float | None = None
        self._finish_reason = ""
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._is_given_up = False
        self._is_waiting = False
        self.is_finished = False
        self.started: Started | None = None

    # Running ------------------------------------------------------------------------------------

    async def begin(self) -> list[Event]:
        """Submit, and wait for the first token or the end. Raises ApiError; then the record is finished."""
        self._task = asyncio.current_task()
        while True:
            try:
                attempt = self._attempt = await self._submit()
                events = await self._first_events(attempt)
            except ApiError as error:
                await self._finish_refused(error)
                raise
            failed = events[-1]
            if not isinstance(failed, Failed):
                attempt.deployment.breaker.succeed()
                return events
            if not self._may_retry:
                return events
            await self._finish_failed(attempt, failed)
            self._attempt = None
            if not self._may_try_another(failed):
                await self._settle(0, Usage())
                raise refusal_of(failed)
            metrics.RETRIES.labels(self._model.name, failed.code).inc()
            logger.info("attempt_failed request_id=%s code=%s", self.request_id, failed.code)
            self.request_id = next_attempt(self.request_id)
            try:
                await self._gateway.admission.transfer(self.reservation, self.request_id)
            except ApiError:
                await self._settle(0, Usage())
                raise

    def _may_try_another(self, failed: Failed) -> bool:
        return (
            failed.code in RETRYABLE
            and not self._is_cancelled
            and len(self._tried) < MAX_ATTEMPTS
            and self._choose() is not None
        )

    def commit_to_attempt(self) -> bool:
        """A first byte is to leave before the first token: from now on no other deployment is tried.

        False when it may not leave yet, because the opening row has not committed.
        """
        attempt = self._attempt
        if attempt is None or not attempt.opened.done() or attempt.opened.exception():
            return False
        self._may_retry = False
        return True

    async def ready(self) -> None:
        """Wait until `next` would not."""
        assert self._attempt is not None
        self._is_waiting = True
        try:
            await self._attempt.stream.ready()
        except asyncio.CancelledError:
            if not self._absorb_give_up():
                raise
        finally:
            self._is_waiting = False

    async def next(self) -> list[Event]:
        assert self._attempt is not None
        return await self._take(self._attempt.stream)

    def cancel(self) -> None:
        """End it soon: the backend is told, and if it does not answer in time, what was seen so far counts."""
        if self._is_cancelled or self.is_finished:
            return
        self._is_cancelled = True
        if self._attempt is not None:
            self._attempt.stream.cancel()
        asyncio.get_running_loop().call_later(CANCEL_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        if self.is_finished:
            return
        self._is_given_up = True
        if self._is_waiting and self._task is not None:
            logger.warning("cancel_unanswered request_id=%s", self.request_id)
            self._task.cancel()

    def _absorb_give_up(self) -> bool:
        """Whether the wait that was just cancelled was cancelled by `_give_up`."""
        if not self._is_given_up or self._task is None:
            return False
        self._task.uncancel()
        return True

    async def _take(self, stream: EventStream) -> list[Event]:
        events: list[Event] = []
        if not self._is_given_up:
            self._is_waiting = True
            try:
                events = await stream.next()
            except asyncio.CancelledError:
                if not self._absorb_give_up():
                    raise
            finally:
                self._is_waiting = False
        if self._is_given_up and not events:
            stream.is_estimated = True
            events = [Finished(stream.usage, cancelled=True)]
        for event in events:
            kind = type(event)
            if kind is Started:
                self.started = cast(Started, event)
            elif kind is ChoiceFinished:
                self._finish_reason = self._finish_reason or cast(ChoiceFinished, event).reason
            elif self._first_token_at is None and kind not in (Failed, Finished):
                self._first_token_at = time.monotonic()
        return events

    def _choose(self) -> Deployment | None:
        embeds = self._request.embedding is not None
        return self._gateway.fleet.choose(self._model.name, self._tried, embeds=embeds)

    async def _submit(self) -> _Attempt:
        deployment = self._choose()
        if deployment is None:
            raise ApiError("engine_unavailable", f"No deployment of '{self._model.name}' can be reached; try again.")
        self._tried.add(deployment.info.id)
        max_tokens = await self._fitting_max_tokens(deployment)
        opened = self._gateway.metering.open(self._open_record(deployment))
        deployment.breaker.enter()
        try:
            stream = deployment.backend.submit(
                self._request,
                request_id=self.request_id,
                tenant=str(self._caller.organization_id),
                max_tokens=max_tokens,
                deadline_unix_ms=self._deadline_unix_ms,
            )
        except EngineError as error:
            stream = _FailedStream(Failed(error.code, error.message, fields=error.fields))
        if self._is_cancelled:
            stream.cancel()
        deployment.in_flight += 1
        metrics.RUNNING.labels(self._model.name).inc()
        if self._request.stream:
            metrics.STREAMS.labels(self._model.name).inc()
        return _Attempt(self.request_id, deployment, stream, opened, time.monotonic())

    async def _fitting_max_tokens(self, deployment: Deployment) -> int:
        """What to ask the deployment for: at most the model's cap.

        A caller without a limit gets what the context leaves. One whose limit does not fit beside the prompt gets an
        error, also where the cap would have made it fit: the engine is then asked for all of it, and says the numbers.
        """
        wanted, asked = self._terms.max_tokens, self._request.max_tokens
        cap, context = self._model.max_output_tokens, self._model.context_tokens
        if self._terms.prompt_bound + wanted <= context or (asked is not None and asked <= cap):
            return min(wanted, cap)
        try:
            prompt_tokens = await deployment.backend.count_tokens(self._request)
        except EngineError:
            return min(wanted, cap)
        if asked is not None:
            return asked if prompt_tokens + asked > context else cap
        return max(1, min(wanted, cap, context - prompt_tokens))

    async def _first_events(self, attempt: _Attempt) -> list[Event]:
        """Up to the first token; the row has committed when they are given."""
        events: list[Event] = []
        while not events or (isinstance(events[-1], Started) and self._may_retry):
            events += await self._take(attempt.stream)
        await self._await_opened(attempt)
        if self._first_token_at is not None:
            # It had to wait for the row, and so has the caller.
            self._first_token_at = time.monotonic()
        return events

    async def _await_opened(self, attempt: _Attempt) -> None:
        if attempt.opened.done():
            attempt.opened.result()
            return
        try:
            await asyncio.wait_for(asyncio.shield(attempt.opened), OPEN_TIMEOUT_S)
        except TimeoutError:
            raise ApiError("store_unavailable", "The service cannot record usage right now; try again.") from None

    def _open_record(self, deployment: Deployment) -> OpenRecord:
        end_user = redact((self._request.end_user or "").replace("\x00", ""))
        return OpenRecord(
            request_id=self.request_id,
            organization_id=self._caller.organization_id,
            project_id=self._caller.project_id,
            api_key_id=self._caller.api_key_id,
            model=self._model.name,
            price_id=self._price.price_id,
            deployment_id=deployment.info.id,
            protocol=self._protocol,
            is_stream=self._request.stream,
            hold_nano=self.reservation.hold_nano,
            started_at=datetime.now(UTC),
            gateway_id=GATEWAY_ID,
            end_user=end_user[:END_USER_LIMIT],
            expects_receipt=deployment.backend.keeps_receipts,
            attempt=attempt_of(self.request_id),
            reserved_input_tokens=self.reservation.input_tokens,
            reserved_output_tokens=self.reservation.output_tokens,
        )

    # Ending -------------------------------------------------------------------------------------

    async def finish(self, last: Finished | Failed) -> None:
        """Write the record and settle. Returns when the record is durable; a repeat does nothing."""
        attempt = self._attempt
        if attempt is None or self.is_finished:
            return
        if isinstance(last, Finished):
            status = "cancelled" if last.cancelled else "completed"
            error_code = "client_closed" if self._is_cancelled else ""
            await self._finish(attempt, status, last.usage, error_code)
        elif last.code == "slow_reader":
            await self._finish(attempt, "cancelled", last.usage, last.code)
        else:
            await self._finish_failed(attempt, last)
            await self._settle(0, Usage())

    async def run_out(self) -> None:
        """Cancel, and take the events to their end: for whoever cannot go on with the call."""
        self._task = asyncio.current_task()
        self.cancel()
        if self._attempt is None:
            await self._settle(0, Usage())
            return
        while events := await self.next():
            if isinstance(events[-1], Finished | Failed):
                await self.finish(events[-1])

    async def _finish_refused(self, error: ApiError) -> None:
        """Nothing was sent, and the call goes no further."""
        attempt = self._attempt
        if attempt is not None:
            # To the engine's last word: record and receipt then say the same, though nothing is owed.
            self.cancel()
            while (events := await self._take(attempt.stream)) and not isinstance(events[-1], Finished | Failed):
                pass
            await self._finish_failed(attempt, Failed(error.code, error.message, attempt.stream.usage))
        await self._settle(0, Usage())

    async def _finish_failed(self, attempt: _Attempt, failed: Failed) -> None:
        if failed.code in BROKEN:
            attempt.deployment.breaker.fail(time.monotonic())
        await self._write(attempt, "failed", failed.usage, failed.code)

    async def _finish(self, attempt: _Attempt, status: str, usage: Usage, error_code: str) -> None:
        cost_nano = await self._write(attempt, status, usage, error_code)
        if cost_nano is None:
            cost_nano = rate(
                self._price,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                usage.reasoning_tokens,
                usage.cache_write_tokens,
            ).total_nano
        await self._settle(cost_nano, usage)

    async def _settle(self, cost_nano: int, usage: Usage) -> None:
        self.is_finished = True
        await self._gateway.admission.settle(self.reservation, cost_nano=cost_nano, usage=usage)

    async def _write(self, attempt: _Attempt, status: str, usage: Usage, error_code: str) -> int | None:
        """The finishing row of an attempt, once. Its cost, or None when PostgreSQL takes it later."""
        attempt.deployment.in_flight -= 1
        attempt.deployment.breaker.leave()
        now = time.monotonic()
        self._count(attempt, status, usage, now)
        first_token_at = self._first_token_at
        row = FinishedRecord(
            request_id=attempt.request_id,
            status=status,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=min(usage.reasoning_tokens, usage.completion_tokens),
            finish_reason=self._finish_reason if status == "completed" else "",
            error_code=error_code[:80],
            ttft_ms=None if first_token_at is None else (first_token_at - self._accepted_at) * 1000,
            duration_ms=(now - self._accepted_at) * 1000,
            finished_at=datetime.now(UTC),
            is_estimated=attempt.stream.is_estimated,
            cache_write_tokens=min(
                usage.cache_write_tokens, usage.prompt_tokens - min(usage.cached_tokens, usage.prompt_tokens)
            ),
            statement=_statement(attempt, usage),
        )
        # The opening row first: a finish that overtook it would find nothing to finish.
        await asyncio.wait([attempt.opened])
        return await asyncio.shield(self._gateway.metering.finish(row))

    def _count(self, attempt: _Attempt, status: str, usage: Usage, now: float) -> None:
        model = self._model.name
        metrics.RUNNING.labels(model).dec()
        if self._request.stream:
            metrics.STREAMS.labels(model).dec()
        first_token_at = self._first_token_at if self._request.stream else None
        per_token_s = None
        if first_token_at is not None and usage.completion_tokens > 1:
            per_token_s = (now - first_token_at) / (usage.completion_tokens - 1)
        metrics.record_call(
            model,
            self._protocol,
            status,
            duration_s=now - self._accepted_at,
            tokens={
                "input": usage.prompt_tokens - usage.cached_tokens,
                "cached_input": usage.cached_tokens,
                "output": usage.completion_tokens,
            },
            first_token_s=None if first_token_at is None else first_token_at - self._accepted_at,
            per_token_s=per_token_s,
        )


class _FailedStream:
    """The stream of a request that could not even be sent."""

    is_ended = True
    is_estimated = False
    upstream_id = ""

    def __init__(self, failed: Failed) -> None:
        self.usage = failed.usage
        self._events: list[Event] = [failed]

    async def ready(self) -> None:
        return

    async def next(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def cancel(self) -> None:
        return


def refusal_of(failed: Failed) -> ApiError:
    """An engine's failure in the caller's terms."""
    message, param = failed.message, failed.fields.get("param")
    anthropic_message = None
    if failed.code == "context_length_exceeded":
        # An upstream's refusal comes in its own words, without numbers.
        anthropic_message = f"prompt is too long: {message}"
        if "prompt_tokens" in failed.fields:
            numbers = [int(failed.fields[name]) for name in ("prompt_tokens", "max_tokens", "context_tokens")]
            message, anthropic_message = openai.context_exceeded(*numbers), messages.context_exceeded(*numbers)
        param = param or "messages"
    code = failed.code if failed.code in TABLE else "engine_error"
    if TABLE[code].openai_status >= 500 and code != "engine_overloaded":
        # What broke inside is for the operator's log, not for the caller.
        logger.warning("generation_failed code=%s message=%r", failed.code, failed.message)
        message = "The model's engine failed; try again."
    return ApiError(code, message, anthropic_message=anthropic_message, param=param)

"""What one gateway process holds: connections, caches, writers, and the calls that run. Made on its event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol
from uuid import UUID

from django.conf import settings
from prometheus_client import start_http_server

from api.admission import Admission
from api.auth import Caller, Keys
from api.backends.choice import Fleet
from api.catalog import Catalog
from api.cors import Origins
from api.errors import ApiError
from api.fan_out import FanOut
from api.generation import Generation, terms_of
from api.key_rules import check_model
from api.metering import GATEWAY_ID, Metering
from api.protocols import sealing
from api.protocols.request import GenerationRequest
from api.refusals import RefusalCounter
from api.valkey import Valkey
from billing.usage.request_ids import new_request_id
from portal.quotas.snapshot import KEYS_REVOKED, LIMITS_CHANGED

logger = logging.getLogger(__name__)

TICK_S = 1.0


class Serving(Protocol):
    """A call under way."""

    def tick(self, now: float) -> None: ...

    def stop(self) -> None: ...


class Gateway:
    def __init__(self) -> None:
        self.body_limit_bytes: int = settings.REQUEST_BODY_LIMIT_BYTES
        self.body_timeout_s: int = settings.REQUEST_BODY_TIMEOUT_S
        self.request_timeout_s: int = settings.REQUEST_TIMEOUT_S
        self._valkey = Valkey(settings.VALKEY_URL)
        self._announcements = Valkey(settings.VALKEY_URL, on_connected=self._hear_again)
        self.fleet = Fleet()
        self.catalog = Catalog(self.fleet)
        self.keys = Keys(self._is_hearing)
        self.origins = Origins()
        self.admission = Admission(self._valkey, self._is_hearing)
        self.refusals = RefusalCounter(GATEWAY_ID)
        self.metering: Metering
        self._serving: dict[asyncio.Task[Any], Serving] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self.is_draining = False

    # Life ---------------------------------------------------------------------------------------

    async def ensure_started(self) -> None:
        """At the server's start, or with the first request where the server does not announce its start."""
        if self._ticking is not None:
            return
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        sealing.configure(settings.SECRET_KEY)
        self.metering = Metering(settings.VAR_DIR / "outbox")
        self._announcements.subscribe((KEYS_REVOKED, LIMITS_CHANGED), self._hear)
        await asyncio.gather(self._valkey.start(), self._announcements.start())
        await asyncio.gather(self.keys.start(), self.catalog.start(), self.admission.start())
        if settings.GATEWAY_METRICS_PORT:
            start_http_server(settings.GATEWAY_METRICS_PORT, settings.GATEWAY_METRICS_HOST)
        self._drain_on_signal()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        logger.info("gateway_started")

    def _drain_on_signal(self) -> None:
        """Servers let calls end before they announce a shutdown, however long that takes: so hear the signal, too."""
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            of_server = signal.getsignal(number)
            if not callable(of_server):
                continue

            def handle(number: int, frame: FrameType | None, of_server: Callable[..., Any] = of_server) -> None:
                loop.call_soon_threadsafe(self.drain)
                of_server(number, frame)

            signal.signal(number, handle)

    def drain(self) -> None:
        """Take no new calls, and cancel those that still run after DRAIN_TIMEOUT_S. A repeat does nothing."""
        if not self.is_draining:
            self.is_draining = True
            logger.info("gateway_draining calls=%s", len(self._serving))
            asyncio.get_running_loop().call_later(settings.DRAIN_TIMEOUT_S, self._stop_calls)

    def _stop_calls(self) -> None:
        for call in list(self._serving.values()):
            call.stop()

    async def close(self) -> None:
        """Drain, and return when all that was done is durable."""
        if self._ticking is None:
            return
        self.drain()
        while remaining := [*self._serving, *self._background]:
            await asyncio.wait(remaining)
        self._ticking.cancel()
        await self.refusals.flush()
        await asyncio.gather(self.keys.close(), self.catalog.close(), self.admission.close())
        await asyncio.get_running_loop().run_in_executor(None, self.metering.close)
        await asyncio.gather(self.fleet.close(), self._valkey.close(), self._announcements.close())
        logger.info("gateway_closed")

    @contextmanager
    def serving(self, call: Serving) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = call
        try:
            yield
        finally:
            del self._serving[task]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work that outlives its request; the gateway does not stop before it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background_work_failed", exc_info=error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for call in list(self._serving.values()):
                call.tick(now)
            if self.refusals.is_due:
                self.spawn(self.refusals.flush())

    def dependencies(self) -> dict[str, bool]:
        """For the health page: what can be reached right now."""
        return {
            "valkey": self._valkey.is_connected,
            "announcements": self._announcements.is_connected,
            "postgresql": not self.metering.is_down,
        }

    # Announcements ------------------------------------------------------------------------------

    def _is_hearing(self) -> bool:
        return self._announcements.is_connected

    def _hear(self, channel: str, text: str) -> None:
        if channel == KEYS_REVOKED:
            self.keys.forget(text)
        elif text.isdigit():
            self.admission.forget_limits(int(text))
            self.keys.forget_organization(int(text))
            self.origins.forget()

    async def _hear_again(self) -> None:
        """Nobody knows what was announced while the connection was down."""
        self.keys.forget()
        self.admission.forget_limits()

    # Calls --------------------------------------------------------------------------------------

    def refuse_when_unable(self) -> None:
        if self.is_draining:
            raise ApiError("shutting_down", "This server is stopping; try again.")
        self.metering.refuse_when_down()

    async def admit(
        self,
        caller: Caller,
        requests: Sequence[GenerationRequest],
        *,
        protocol: str,
        body_bytes: int,
        request_id: UUID,
        accepted_at: float,
    ) -> Generation | FanOut:
        """Reserve for each request, all or none. Raises ApiError; then nothing is held."""
        model = await self.catalog.find(requests[0].model)
        check_model(caller.allowed_models, model.name)
        if not self.fleet.serves(model.name):
            raise ApiError("engine_unavailable", f"No deployment serves '{model.name}' right now; try again.")
        if requests[0].embedding is not None and not await self.fleet.embeds(model.name):
            raise ApiError(
                "invalid_request",
                f"The model '{model.name}' generates text; it does not support embeddings.",
                param="model",
                wire_code="unsupported_value",
            )
        price = await self.catalog.price(model.name, caller.organization_id)
        generations: list[Generation] = []
        for request in requests:
            terms = terms_of(request, model, price, body_bytes)
            next_id = new_request_id() if generations else request_id
            try:
                reservation = await self.admission.reserve(caller, next_id, terms.demand)
            except ApiError:
                for generation in generations:
                    await self.admission.release(generation.reservation)
                raise
            generations.append(
                Generation(
                    self,
                    caller=caller,
                    request=request,
                    protocol=protocol,
                    model=model,
                    price=price,
                    terms=terms,
                    reservation=reservation,
                    accepted_at=accepted_at,
                )
            )
        return generations[0] if len(generations) == 1 else FanOut(generations, requests[0].n)

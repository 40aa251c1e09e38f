"""Which deployment serves a call: the least loaded of those that work, by weight, with a breaker each."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from api.backends.engine import EngineBackend
from api.backends.openai_http import OpenAiBackend
from api.backends.stream import EventStream
from api.protocols.request import GenerationRequest
from portal.catalog.selectors import DeploymentInfo

logger = logging.getLogger(__name__)

# Failures before the first token after which another deployment may still serve the same call.
RETRYABLE = frozenset(
    {"engine_unavailable", "engine_shutdown", "engine_overloaded", "model_not_served", "device_fault", "upstream_error"}
)
# Those that say that the deployment is broken, not merely full.
BROKEN = RETRYABLE - {"engine_overloaded"}
MAX_ATTEMPTS = 3
FAILURES_TO_OPEN = 3
OPEN_S = (1.0, 30.0)  # first and longest pause before a probe


class Backend(Protocol):
    # False: an upstream without a journal; reconciliation does not wait for its receipts.
    keeps_receipts: bool

    # Whether it may be asked for embeddings, as far as is known.
    @property
    def embeds(self) -> bool: ...

    async def find_embeds(self) -> bool:
        """Ask it. Also true where it cannot be reached: then that is what stands in the way."""

    def submit(
        self, request: GenerationRequest, *, request_id: UUID, tenant: str, max_tokens: int, deadline_unix_ms: int
    ) -> EventStream: ...

    async def count_tokens(self, request: GenerationRequest) -> int: ...

    async def is_healthy(self) -> bool: ...

    async def close(self) -> None: ...


class Breaker:
    """Closed: calls pass. Open: none, for a while. Half open: one call probes; its end decides."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = OPEN_S[0]
        self._open_until: float | None = None
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        return self._open_until is not None

    def allows(self, now: float) -> bool:
        return self._open_until is None or (now >= self._open_until and not self._is_probing)

    def enter(self) -> None:
        """A call goes through; while open, it is the probe."""
        self._is_probing = self._open_until is not None

    def succeed(self) -> None:
        self._failures, self._pause_s = 0, OPEN_S[0]
        self._open_until, self._is_probing = None, False

    def fail(self, now: float) -> None:
        self._failures += 1
        if self._is_probing:
            self._pause_s = min(self._pause_s * 2, OPEN_S[1])
        if self._is_probing or self._failures >= FAILURES_TO_OPEN:
            self._open_until = now + self._pause_s
        self._is_probing = False

    def leave(self) -> None:
        """The call ended without telling anything, for example because its caller left."""
        self._is_probing = False


class Deployment:
    def __init__(self, info: DeploymentInfo, backend: Backend) -> None:
        self.info = info
        self.backend = backend
        self.breaker = Breaker()
        self.in_flight = 0

    @property
    def load(self) -> float:
        return (self.in_flight + 1) / self.info.weight


def make_backend(info: DeploymentInfo) -> Backend:
    if info.kind == "engine":
        return EngineBackend(info.address, info.upstream_model)
    return OpenAiBackend(info.address, info.upstream_model, os.environ.get(info.credential_variable, ""))


class Fleet:
    """The deployments that may get traffic. `refresh` follows the catalog; calls under way are not disturbed."""

    def __init__(self) -> None:
        self._by_model: dict[str, list[Deployment]] = {}
        self._retired: list[Deployment] = []

    @property
    def all(self) -> list[Deployment]:
        return [deployment for group in self._by_model.values() for deployment in group]

    def serves(self, model: str) -> bool:
        return bool(self._by_model.get(model))

    async def embeds(self, model: str) -> bool:
        found = await asyncio.gather(*(each.backend.find_embeds() for each in self._by_model.get(model, ())))
        return any(found)

    async def refresh(self, infos: Iterable[DeploymentInfo]) -> None:
        old = {deployment.info: deployment for deployment in self.all}
        fresh: dict[str, list[Deployment]] = {}
        for info in infos:
            deployment = old.pop(info, None) or Deployment(info, make_backend(info))
            fresh.setdefault(info.model, []).append(deployment)
        self._by_model = fresh
        self._retired += old.values()
        for deployment in [deployment for deployment in self._retired if not deployment.in_flight]:
            self._retired.remove(deployment)
            await deployment.backend.close()

    def choose(self, model: str, tried: set[int], *, embeds: bool = False) -> Deployment | None:
        """The least loaded that works and was not tried, of those that embed if so asked; None when there is none."""
        now = time.monotonic()
        usable = [
            deployment
            for deployment in self._by_model.get(model, ())
            if deployment.info.id not in tried
            and deployment.breaker.allows(now)
            and (deployment.backend.embeds or not embeds)
        ]
        if not usable:
            return None
        least = min(deployment.load for deployment in usable)
        return random.choice([deployment for deployment in usable if deployment.load == least])

    async def close(self) -> None:
        await asyncio.gather(*(deployment.backend.close() for deployment in [*self.all, *self._retired]))

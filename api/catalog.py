"""Models, prices and deployments as the gateway knows them: read every few seconds, so a call costs no query.

A change in the portal is in force within REFRESH_INTERVAL_S; a model that is not known yet is looked up at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from api.backends.choice import Fleet
from api.errors import ApiError
from api.stores import STORE_ERRORS, in_thread
from billing.pricing.selectors import PriceInfo, current_price
from portal.catalog.selectors import DeploymentInfo, ModelInfo, enabled_deployments, published_models

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S = 5.0
# Callers that guess model names wait this long together, so they do not make us query more often.
MISS_INTERVAL_S = 0.1
PRICE_LIMIT = 20_000


def _read() -> tuple[list[ModelInfo], list[DeploymentInfo]]:
    return published_models(), enabled_deployments()


class Catalog:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._models: dict[str, ModelInfo] = {}
        self._prices: dict[tuple[str, int], tuple[float, PriceInfo | None]] = {}
        # When the last successful read began.
        self._began_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        try:
            await self._refresh()
        except STORE_ERRORS as error:
            logger.warning("catalog_not_read error=%s", type(error).__name__)
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    async def models(self) -> list[ModelInfo]:
        if self._began_at == float("-inf"):
            await self._refresh_or_refuse()
        return list(self._models.values())

    async def find(self, name: str) -> ModelInfo:
        """Raises ApiError model_not_found, naming it."""
        model = self._models.get(name)
        if model is None:
            await self._read_anew(asked_at=time.monotonic())
            model = self._models.get(name)
        if model is None:
            raise ApiError(
                "model_not_found",
                f"The model '{name[:200]}' does not exist or is not offered here; GET /v1/models lists those that are.",
                param="model",
            )
        return model

    async def price(self, model: str, organization_id: int) -> PriceInfo:
        """The price in force now. Raises ApiError when the model is not for sale."""
        now = time.monotonic()
        cached = self._prices.get((model, organization_id))
        if cached is not None and now - cached[0] < REFRESH_INTERVAL_S:
            price = cached[1]
        else:
            try:
                price = await in_thread(current_price, model, datetime.now(UTC), organization_id)
            except STORE_ERRORS as error:
                raise ApiError("store_unavailable", "The service cannot read prices right now; try again.") from error
            if len(self._prices) >= PRICE_LIMIT:
                self._prices.clear()
            self._prices[model, organization_id] = (now, price)
        if price is None:
            raise ApiError(
                "model_not_found", f"The model '{model}' has no price yet, so it cannot be called.", param="model"
            )
        return price

    async def _read_anew(self, *, asked_at: float) -> None:
        """Until what we know was read after the question: a model made a moment ago is found."""
        while self._began_at < asked_at:
            await asyncio.sleep(max(0.0, self._began_at + MISS_INTERVAL_S - time.monotonic()))
            if self._began_at < asked_at:
                await self._refresh_or_refuse()

    async def _refresh_or_refuse(self) -> None:
        try:
            await self._refresh()
        except STORE_ERRORS as error:
            raise ApiError("store_unavailable", "The service cannot read its models right now; try again.") from error

    async def _refresh(self) -> None:
        """One read at a time; those who come meanwhile wait for it."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_now())
        task = self._refreshing
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._refreshing = None

    async def _refresh_now(self) -> None:
        began_at = time.monotonic()
        models, deployments = await in_thread(_read)
        self._models = {model.name: model for model in models}
        await self._fleet.refresh(deployments)
        self._began_at = began_at

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            try:
                await self._refresh()
            except STORE_ERRORS as error:
                # What was read last stays in force; calls are refused elsewhere while PostgreSQL is away.
                logger.warning("catalog_not_read error=%s", type(error).__name__)

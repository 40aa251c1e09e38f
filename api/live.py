"""The operations view over a WebSocket: staff only, pushed whenever deployments were sampled.

The browser says what it shows, as the page's query does: `{"range": "24h", "group": "model", "model": ""}`; each
answer is the whole view (portal/operations/selectors.py). Another message changes what is shown.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import redis
from asgiref.sync import async_to_sync
from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.layers import get_channel_layer
from channels.security.websocket import AllowedHostsOriginValidator
from django.utils import timezone

from portal.access import is_operator
from portal.operations.forms import ViewForm
from portal.operations.selectors import ViewFilters, view

logger = logging.getLogger(__name__)

OPERATIONS_PATH = "/portal-api/operations"
GROUP = "operations"
# Browsers that show the same share one reading.
SHARED_S = 2.0
NOT_ALLOWED = 4403
BAD_FILTERS = 4400

_shared: dict[ViewFilters, tuple[float, dict[str, Any]]] = {}


class OperationsConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # channels is untyped
    groups = [GROUP]

    def __init__(self) -> None:
        super().__init__()
        self._filters: ViewFilters | None = None

    async def connect(self) -> None:
        if await self._is_allowed():
            await self.accept()
        else:
            await self.close(NOT_ALLOWED)

    async def _is_allowed(self) -> bool:
        """Asked again before each push: rights may have been taken away meanwhile."""
        user = self.scope["user"]
        return bool(user.is_authenticated and await database_sync_to_async(is_operator)(user.pk))

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        filters = await database_sync_to_async(_filters)(content)
        if filters is None:
            await self.close(BAD_FILTERS)
            return
        self._filters = filters
        await self._push()

    async def operations_sampled(self, event: dict[str, Any]) -> None:
        if self._filters is not None:
            await self._push()

    async def _push(self) -> None:
        if not await self._is_allowed():
            await self.close(NOT_ALLOWED)
        elif self._filters is not None:
            await self.send_json(await database_sync_to_async(_view)(self._filters))


def _filters(content: Any) -> ViewFilters | None:
    form = ViewForm(content if isinstance(content, dict) else {})
    return form.filters() if form.is_valid() else None


def _view(filters: ViewFilters) -> dict[str, Any]:
    now = time.monotonic()
    kept = _shared.get(filters)
    if kept is not None and now - kept[0] < SHARED_S:
        return kept[1]
    for old in [old for old, (read_at, _) in _shared.items() if now - read_at >= SHARED_S]:
        _shared.pop(old, None)
    found = view(filters, now=timezone.now())
    _shared[filters] = (now, found)
    return found


def announce_samples() -> None:
    """Have every open view renewed. A lost announcement is made up for by the next one."""
    try:
        async_to_sync(get_channel_layer().group_send)(GROUP, {"type": "operations.sampled"})
    except redis.RedisError as error:
        logger.warning("samples_not_announced error=%s", type(error).__name__)


# A page of another site could open a socket with the operator's cookies: the origin must be one of our hosts.
application = AllowedHostsOriginValidator(AuthMiddlewareStack(OperationsConsumer.as_asgi()))

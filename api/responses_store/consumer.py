"""A Responses call that builds on kept responses and is kept itself."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import orjson
from django.conf import settings

from api.auth import Caller
from api.consumer import InferenceConsumer
from api.errors import ApiError
from api.gateway import Gateway
from api.protocols import responses
from api.protocols.dialect import Writer
from api.responses_store import selectors, services
from api.responses_store.errors import PreviousResponseNotFound
from api.stores import STORE_ERRORS, in_thread

logger = logging.getLogger(__name__)

LOCAL_LIMIT = 16


class LocalResponses:
    """Responses of one WebSocket that are not to be stored: they live and can be continued as long as it does."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def find(self, response_id: str | None) -> list[dict[str, Any]] | None:
        """The whole conversation up to that response."""
        return self._conversations.get(response_id or "")

    def remember(self, response_id: str, conversation: list[dict[str, Any]]) -> None:
        self._conversations[response_id] = conversation
        if len(self._conversations) > LOCAL_LIMIT:
            self._conversations.popitem(last=False)

    def forget(self, response_id: str | None) -> None:
        self._conversations.pop(response_id or "", None)


class ResponsesConsumer(InferenceConsumer):
    def __init__(self, gateway: Gateway, dialect: ModuleType, local: LocalResponses | None = None) -> None:
        super().__init__(gateway, dialect)
        self._local = local or LocalResponses()
        self._history: list[dict[str, Any]] = []

    async def prepare(self, caller: Caller, parsed: responses.Parsed, body_bytes: int) -> int:
        if not settings.RESPONSE_RETENTION_DAYS and parsed.is_stored:
            parsed.is_stored = parsed.echo["store"] = False
        if not parsed.needs_history:
            return body_bytes
        try:
            self._history, history_bytes = await self._load_history(caller, parsed)
            found = await in_thread(selectors.find_items, caller.project_id, parsed.referenced_ids, datetime.now(UTC))
        except PreviousResponseNotFound as error:
            raise previous_not_found(error) from None
        except STORE_ERRORS as error:
            raise ApiError("store_unavailable", "Kept responses cannot be read right now; try again.") from error
        referenced = {name: orjson.loads(item) for name, item in found.items()}
        responses.expand(parsed, history=self._history, referenced=referenced)
        return body_bytes + history_bytes + sum(map(len, found.values()))

    async def _load_history(self, caller: Caller, parsed: responses.Parsed) -> tuple[list[dict[str, Any]], int]:
        if parsed.previous_response_id is None:
            return [], 0
        local = self._local.find(parsed.previous_response_id)
        if local is not None:
            return local, len(orjson.dumps(local))
        kept = await in_thread(selectors.history, caller.project_id, parsed.previous_response_id, datetime.now(UTC))
        return [orjson.loads(item) for item in kept], sum(map(len, kept))

    async def keep(self, caller: Caller, parsed: responses.Parsed, writer: Writer) -> None:
        response = orjson.loads(writer.result())
        if response["object"] != "response":
            return
        items = responses.kept_items(parsed.items, response["id"].removeprefix("resp_"))
        if not parsed.is_stored:
            self._local.remember(response["id"], [*self._history, *items, *response["output"]])
            return
        previous = parsed.previous_response_id
        if self._local.find(previous) is not None:
            previous, items = None, [*self._history, *items]
        await self._save(caller, response, previous, items)

    async def _save(
        self, caller: Caller, response: dict[str, Any], previous: str | None, items: Sequence[dict[str, Any]]
    ) -> None:
        """The answer is made and paid for: when it cannot be kept it is still given."""
        try:
            await in_thread(
                services.save_response,
                project_id=caller.project_id,
                response=response,
                previous_response_id=previous,
                input_items=items,
                now=datetime.now(UTC),
                retention=timedelta(days=settings.RESPONSE_RETENTION_DAYS),
            )
        except (PreviousResponseNotFound, *STORE_ERRORS) as error:
            logger.warning("response_not_kept response_id=%s error=%s", response["id"], type(error).__name__)


def previous_not_found(error: PreviousResponseNotFound) -> ApiError:
    return ApiError(
        "not_found",
        f"Previous response with id '{error.response_id}' not found.",
        param="previous_response_id",
        wire_code="previous_response_not_found",
    )

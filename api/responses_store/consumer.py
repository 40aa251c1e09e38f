"""A Responses call that builds on kept responses and is kept itself."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.conf import settings

from api.auth import Caller
from api.consumer import InferenceConsumer
from api.errors import ApiError
from api.gateway import Gateway
from api.protocols import responses
from api.protocols.dialect import Dialect, Writer
from api.responses_store import selectors, services
from api.responses_store.errors import PreviousResponseNotFound
from api.stores import STORE_ERRORS, in_thread

logger = logging.getLogger(__name__)

LOCAL_LIMIT = 16
NOT_KEPT = "Responses are not kept here: prompts and answers are stored only where the organization's settings say so."


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


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a call builds on, and how many bytes it adds to the prompt at most."""

    history: list[dict[str, Any]]
    referenced: dict[str, dict[str, Any]]
    size_bytes: int


def keeps(caller: Caller) -> bool:
    """Whether prompts and answers may be kept: both the operator and the organization have to say so."""
    return caller.keeps_responses and settings.RESPONSE_RETENTION_DAYS > 0


async def load_earlier(caller: Caller, parsed: responses.Parsed, local: LocalResponses | None = None) -> Earlier:
    """Raises ApiError when something is not there."""
    now = datetime.now(UTC)
    kept: list[bytes] = []
    known = local.find(parsed.previous_response_id) if local else None
    try:
        if parsed.previous_response_id is not None and known is None:
            if not keeps(caller):
                raise PreviousResponseNotFound(parsed.previous_response_id)
            kept = await in_thread(selectors.history, caller.project_id, parsed.previous_response_id, now)
        found = await in_thread(selectors.find_items, caller.project_id, parsed.referenced_ids, now)
    except PreviousResponseNotFound as error:
        raise ApiError(
            "not_found",
            f"Previous response with id '{error.response_id}' not found."
            + ("" if keeps(caller) else f" {NOT_KEPT} Send the whole conversation in `input`."),
            param="previous_response_id",
            wire_code="previous_response_not_found",
        ) from None
    except STORE_ERRORS as error:
        raise ApiError("store_unavailable", "Kept responses cannot be read right now; try again.") from error
    size_bytes = sum(map(len, kept)) + sum(map(len, found.values())) + (len(orjson.dumps(known)) if known else 0)
    history = known if known is not None else [orjson.loads(item) for item in kept]
    return Earlier(history, {name: orjson.loads(item) for name, item in found.items()}, size_bytes)


class ResponsesConsumer(InferenceConsumer):
    def __init__(self, gateway: Gateway, dialect: Dialect[Any], local: LocalResponses | None = None) -> None:
        super().__init__(gateway, dialect)
        self._local = local or LocalResponses()
        self._history: list[dict[str, Any]] = []

    async def prepare(self, caller: Caller, parsed: Any, body_bytes: int) -> int:
        if not keeps(caller):
            if parsed.is_asked_to_store:
                raise ApiError("invalid_request", f"{NOT_KEPT} Leave `store` out, or send false.", param="store")
            parsed.is_stored = parsed.echo["store"] = False
        if not parsed.needs_history:
            return body_bytes
        earlier = await load_earlier(caller, parsed, self._local)
        responses.expand(parsed, history=earlier.history, referenced=earlier.referenced)
        self._history = earlier.history
        return body_bytes + earlier.size_bytes

    async def keep(self, caller: Caller, parsed: Any, writer: Writer) -> None:
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

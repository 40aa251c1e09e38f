"""Kept responses over HTTP: GET and DELETE /v1/responses/{id}, GET …/input_items, POST …/cancel."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import parse_qs

import orjson

from api.errors import ApiError
from api.gateway import Gateway
from api.generation import new_request_id
from api.http import STREAM_HEADERS, Answer, Receive, Scope, Send, headers_of
from api.protocols.responses.replay import replay
from api.responses_store import selectors, services
from api.responses_store.errors import ItemNotFound, ResponseNotFound
from api.stores import STORE_ERRORS, in_thread

logger = logging.getLogger(__name__)

PATH = re.compile(r"/v1/responses/(?P<id>resp_[^/]+)(?P<rest>|/input_items|/cancel)")
METHODS = {"": ("GET", "DELETE"), "/input_items": ("GET",), "/cancel": ("POST",)}
PAGE_LIMIT = 100


class KeptResponses:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        answer = Answer(send, headers, str(new_request_id()), "openai")
        try:
            caller = await self._gateway.keys.authenticate(headers, "openai")
            answer.organization = caller.organization_slug
            await self._answer(answer, caller.project_id, scope)
        except ApiError as error:
            await answer.refuse(error)
        except (ResponseNotFound, ItemNotFound) as error:
            await answer.refuse(ApiError("not_found", str(error)))
        except STORE_ERRORS:
            await answer.refuse(ApiError("store_unavailable", "Kept responses cannot be read right now; try again."))
        except Exception:  # the edge of the process: recorded and answered
            logger.exception("request_failed request_id=%s", answer.request_id)
            await answer.refuse(ApiError("server_error", "The server failed; the operator can find it in the log."))

    async def _answer(self, answer: Answer, project_id: int, scope: Scope) -> None:
        found = PATH.fullmatch(scope["path"])
        if found is None:
            raise ApiError("not_found", f"There is nothing at {scope['path']}.")
        name, rest, method = found["id"], found["rest"], scope["method"]
        query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        now = datetime.now(UTC)
        if method not in METHODS[rest]:
            allowed = ", ".join(METHODS[rest])
            raise ApiError(
                "method_not_supported", f"{method} is not supported here; use {allowed}.", headers=(("allow", allowed),)
            )
        if rest == "/cancel":
            await in_thread(selectors.find_response, project_id, name, now)
            raise ApiError("invalid_request", "Cannot cancel a response that was not made in the background.")
        if rest == "/input_items":
            await answer.whole(200, await self._items(project_id, name, now, query))
        elif method == "DELETE":
            await in_thread(services.delete_response, project_id=project_id, response_id=name)
            await answer.whole(200, orjson.dumps({"id": name, "object": "response", "deleted": True}))
        else:
            response = await in_thread(selectors.find_response, project_id, name, now)
            if query.get("stream") == "true":
                await self._tell_again(answer, response, query.get("starting_after", "-1"))
            else:
                await answer.whole(200, response)

    async def _items(self, project_id: int, name: str, now: datetime, query: dict[str, str]) -> bytes:
        limit = query.get("limit", "20")
        if not limit.isdecimal() or not 1 <= int(limit) <= PAGE_LIMIT:
            raise ApiError("invalid_request", f"'limit' must be a number from 1 to {PAGE_LIMIT}.", param="limit")
        order: Literal["asc", "desc"] = "desc"
        if query.get("order", "desc") not in ("asc", "desc"):
            raise ApiError("invalid_request", "'order' must be 'asc' or 'desc'.", param="order")
        if query.get("order") == "asc":
            order = "asc"
        page = await in_thread(
            selectors.input_items, project_id, name, now, after=query.get("after"), limit=int(limit), order=order
        )
        frame = {"object": "list", "first_id": page.first_id, "last_id": page.last_id, "has_more": page.has_more}
        return orjson.dumps({**frame, "data": [orjson.Fragment(item) for item in page.items]})

    async def _tell_again(self, answer: Answer, response: bytes, starting_after: str) -> None:
        if not starting_after.removeprefix("-").isdecimal():
            raise ApiError("invalid_request", "'starting_after' must be a sequence number.", param="starting_after")
        frames = b"".join(replay(orjson.loads(response))).split(b"\n\n")[:-1]
        await answer.begin(200, STREAM_HEADERS)
        await answer.write(b"".join(frame + b"\n\n" for frame in frames[int(starting_after) + 1 :]), is_last=True)

"""Kept responses over HTTP: GET and DELETE /v1/responses/{id}, GET …/input_items, POST …/cancel; and input_tokens."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Literal, ParamSpec, TypeVar
from urllib.parse import parse_qs

import orjson

from api import endpoints
from api.endpoints import Exchange
from api.errors import ApiError
from api.protocols import responses
from api.protocols.responses.replay import replay
from api.responses_store import selectors, services
from api.responses_store.consumer import load_earlier
from api.responses_store.errors import ItemNotFound, ResponseNotFound
from api.stores import STORE_ERRORS, in_thread

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[Exchange], Awaitable[object]]

PAGE_LIMIT = 100
_PATH = re.compile(r"/v1/responses/(?P<id>[^/]+)(?P<rest>|/input_items|/cancel)")


def handlers_of(path: str) -> dict[str, Handler]:
    """Method to handler of a kept response's path; empty for other paths."""
    found = _PATH.fullmatch(path)
    return _HANDLERS[found["rest"]] if found else {}


def _id_of(exchange: Exchange) -> str:
    found = _PATH.fullmatch(exchange.scope["path"])
    assert found is not None
    return found["id"]


def _query(exchange: Exchange) -> dict[str, str]:
    return {key: values[-1] for key, values in parse_qs(exchange.scope["query_string"].decode("latin-1")).items()}


async def _ask(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A look-up in the store, its errors as answers."""
    try:
        return await in_thread(function, *args, **kwargs)
    except (ResponseNotFound, ItemNotFound) as error:
        raise ApiError("not_found", str(error)) from None
    except STORE_ERRORS as error:
        raise ApiError("store_unavailable", "Kept responses cannot be read right now; try again.") from error


async def _show(exchange: Exchange) -> object:
    caller = await exchange.authenticate()
    query = _query(exchange)
    body = await _ask(selectors.find_response, caller.project_id, _id_of(exchange), datetime.now(UTC))
    if query.get("stream") != "true":
        return body
    starting_after = query.get("starting_after", "-1")
    if not starting_after.removeprefix("-").isdecimal():
        raise ApiError("invalid_request", "'starting_after' must be a sequence number.", param="starting_after")
    frames = b"".join(replay(orjson.loads(body))).split(b"\n\n")[:-1]
    await exchange.stream(b"".join(frame + b"\n\n" for frame in frames[int(starting_after) + 1 :]))
    return None


async def _delete(exchange: Exchange) -> object:
    caller = await exchange.authenticate()
    name = _id_of(exchange)
    await _ask(services.delete_response, project_id=caller.project_id, response_id=name)
    return {"id": name, "object": "response", "deleted": True}


async def _cancel(exchange: Exchange) -> object:
    caller = await exchange.authenticate()
    await _ask(selectors.find_response, caller.project_id, _id_of(exchange), datetime.now(UTC))
    raise ApiError("invalid_request", "Only responses made in the background can be cancelled; none are made here.")


async def _list_items(exchange: Exchange) -> object:
    caller = await exchange.authenticate()
    query = _query(exchange)
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit) <= PAGE_LIMIT:
        raise ApiError("invalid_request", f"'limit' must be a number from 1 to {PAGE_LIMIT}.", param="limit")
    if query.get("order", "desc") not in ("asc", "desc"):
        raise ApiError("invalid_request", "'order' must be 'asc' or 'desc'.", param="order")
    order: Literal["asc", "desc"] = "asc" if query.get("order") == "asc" else "desc"
    page = await _ask(
        selectors.input_items,
        caller.project_id,
        _id_of(exchange),
        datetime.now(UTC),
        after=query.get("after"),
        limit=int(limit),
        order=order,
    )
    return {
        "object": "list",
        "data": [orjson.Fragment(item) for item in page.items],
        "first_id": page.first_id,
        "last_id": page.last_id,
        "has_more": page.has_more,
    }


async def count_input_tokens(exchange: Exchange) -> bytes:
    caller = await exchange.authenticate()
    parsed = responses.parse_count(await exchange.body())
    if parsed.needs_history:
        earlier = await load_earlier(caller, parsed)
        responses.expand(parsed, history=earlier.history, referenced=earlier.referenced)
    return responses.count_body(await endpoints.count(exchange, parsed.request))


_HANDLERS: dict[str, dict[str, Handler]] = {
    "": {"GET": _show, "DELETE": _delete},
    "/input_items": {"GET": _list_items},
    "/cancel": {"POST": _cancel},
}

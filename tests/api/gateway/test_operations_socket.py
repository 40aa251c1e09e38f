"""The operations view's WebSocket: for staff, from our own pages; the view at once and after each round of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.conf import settings
from django.test import Client

from api import live
from portal.users.models import User
from tests.api.live.service import PATIENCE_S
from tests.factories.portal import Cast, make_cast

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_shared() -> Iterator[None]:
    live._shared.clear()
    yield
    live._shared.clear()


def session_of(user: User | None) -> str:
    browser = Client()
    if user:
        browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return f"{settings.SESSION_COOKIE_NAME}={browser.cookies[settings.SESSION_COOKIE_NAME].value}" if user else ""


class Socket:
    """A browser's end. (channels.testing has one, but needs a server that we do not use.)"""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {"type": "websocket", "path": live.OPERATIONS_PATH, "headers": headers, "subprotocols": []}
        self._end = ApplicationCommunicator(live.application, scope)

    async def connect(self) -> bool:
        await self._end.send_input({"type": "websocket.connect"})
        return (await self._end.receive_output(PATIENCE_S))["type"] == "websocket.accept"

    async def say(self, content: dict[str, str]) -> None:
        await self._end.send_input({"type": "websocket.receive", "text": json.dumps(content)})

    async def hear(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._end.receive_output(PATIENCE_S)
        return json.loads(message["text"]) if "text" in message else message

    async def leave(self) -> None:
        await self._end.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._end.wait(PATIENCE_S)


async def connect(user: User | None, origin: str = "http://localhost") -> tuple[Socket, bool]:
    cookie = await sync_to_async(session_of)(user)
    headers = [(b"origin", origin.encode()), (b"cookie", cookie.encode()), (b"host", b"localhost")]
    socket = Socket(headers)
    return socket, await socket.connect()


@pytest.fixture
def cast() -> Cast:
    return make_cast()


async def test_staff_get_the_view_they_ask_for_and_again_after_samples(cast: Cast) -> None:
    socket, is_accepted = await connect(cast.oda)
    assert is_accepted
    await socket.say({"range": "24h", "group": "deployment"})
    first: dict[str, Any] = await socket.hear()
    assert (first["range"], first["step_s"]) == ("24h", 900)
    await get_channel_layer().group_send(live.GROUP, {"type": "operations.sampled"})
    assert (await socket.hear())["range"] == "24h"
    await socket.say({"range": "15m"})
    assert (await socket.hear())["range"] == "15m"
    await socket.leave()


async def test_a_quiet_socket_outlives_the_wait_of_its_channel() -> None:
    """The channel is waited for in turns; a store's connection that gave up within one would end the socket."""
    layer = get_channel_layer()
    assert layer.connection(0).connection_pool.connection_kwargs["socket_timeout"] > layer.brpop_timeout


@pytest.mark.parametrize("who", ["ada", None])
async def test_nobody_else_gets_in(cast: Cast, who: str | None) -> None:
    _, is_accepted = await connect(getattr(cast, who) if who else None)
    assert not is_accepted


async def test_a_page_of_another_site_gets_nothing(cast: Cast) -> None:
    _, is_accepted = await connect(cast.oda, origin="https://elsewhere.example")
    assert not is_accepted


async def test_rights_that_are_taken_away_close_it(cast: Cast) -> None:
    socket, _ = await connect(cast.oda)
    await sync_to_async(User.objects.filter(id=cast.oda.id).update)(is_staff=False)
    await socket.say({"range": "15m"})
    assert await socket.hear() == {"type": "websocket.close", "code": live.NOT_ALLOWED}


@pytest.mark.parametrize("content", [{"range": "1y"}, {"organization": "nobody"}, {"model": "none"}])
async def test_unknown_filters_close_it(cast: Cast, content: dict[str, str]) -> None:
    socket, _ = await connect(cast.oda)
    await socket.say(content)
    assert (await socket.hear())["code"] == live.BAD_FILTERS

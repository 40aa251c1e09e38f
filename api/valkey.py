"""A Valkey connection of our own for the hot path: commands of one loop turn leave in one write.

A general client costs 3 to 14 times the CPU (docs/adr/0031). One connection a gateway process; replies come in
order, so a deque of futures is the whole bookkeeping. It reconnects by itself; what was under way then fails with
`ValkeyUnavailable`, and so does every command while it is down: callers never wait for a store that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from api.functions import LIBRARY, is_unknown_function

logger = logging.getLogger(__name__)

Argument = str | bytes | int
# Replies are of whatever type the command gives: bytes, int, None, or lists of these.
Reply = Any

PENDING_LIMIT = 10_000
TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 2.0
WATCH_INTERVAL_S = 0.5
RECONNECT_S = (0.05, 1.0)


class ValkeyUnavailable(Exception):
    """No reply: not connected, broken under way, or too slow. A write under way may or may not have happened."""


class ValkeyError(Exception):
    """The server refused the command."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    path: str | None
    use_tls: bool
    username: str
    password: str
    database: int

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        is_socket = parts.scheme == "unix"
        database = parse_qs(parts.query).get("db", ["0"])[0] if is_socket else parts.path.strip("/") or "0"
        return cls(
            host=parts.hostname or "localhost",
            port=parts.port or 6379,
            path=parts.path if is_socket else None,
            use_tls=parts.scheme == "rediss",
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=int(database),
        )


class _Wire(asyncio.Protocol):
    """One TCP connection: bytes out once a loop turn, replies to their futures in order."""

    def __init__(self, on_lost: Callable[[_Wire], None], on_push: Callable[[list[Reply]], None] | None) -> None:
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._pending: deque[tuple[float, asyncio.Future[Reply]]] = deque()
        self._on_lost = on_lost
        self._on_push = on_push

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but does not inherit

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._on_push is not None and isinstance(reply, list) and reply[0] in (b"message", b"subscribe"):
                self._on_push(reply)
                continue
            _, future = self._pending.popleft()
            if future.done():
                continue
            if isinstance(reply, hiredis.ReplyError):
                future.set_exception(ValkeyError(str(reply)))
            else:
                future.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for _, future in self._pending:
            if not future.done():
                future.set_exception(ValkeyUnavailable("The connection to Valkey broke."))
                future.exception()  # a caller that was cancelled meanwhile does not look
        self._pending.clear()
        self._on_lost(self)

    def call(self, *arguments: Argument) -> asyncio.Future[Reply]:
        if len(self._pending) >= PENDING_LIMIT:
            raise ValkeyUnavailable(f"{PENDING_LIMIT} commands wait for Valkey's reply.")
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._pending.append((self._loop.time(), future))
        self.write(*arguments)
        return future

    def write(self, *arguments: Argument) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(hiredis.pack_command(arguments))  # type: ignore[arg-type]  # the stub says a 1-tuple

    def _flush(self) -> None:
        data, self._out = b"".join(self._out), []
        if self._transport is not None:
            self._transport.write(data)

    def is_stalled(self) -> bool:
        return bool(self._pending) and self._loop.time() - self._pending[0][0] > TIMEOUT_S

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Valkey:
    """A connection that comes back. Make and use it on one event loop."""

    def __init__(self, url: str, *, on_connected: Callable[[], Awaitable[None]] | None = None) -> None:
        self._address = Address.parse(url)
        self._wire: _Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._on_connected = on_connected
        self._on_push: Callable[[list[Reply]], None] | None = None
        self._channels: tuple[str, ...] = ()

    @property
    def is_connected(self) -> bool:
        return self._wire is not None

    def subscribe(self, channels: tuple[str, ...], on_message: Callable[[str, str], None]) -> None:
        """Before `start`: this connection then only listens. After each reconnect `on_connected` is awaited first."""

        def on_push(reply: list[Reply]) -> None:
            if reply[0] == b"message":
                on_message(reply[1].decode(), reply[2].decode())

        self._channels, self._on_push = channels, on_push

    async def start(self) -> None:
        """Connect once, or leave it to the background when the server is not there yet."""
        with contextlib.suppress(OSError, TimeoutError, ValkeyError, ValkeyUnavailable):
            await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._wire is not None:
            self._wire.abort()

    def call(self, *arguments: Argument) -> Awaitable[Reply]:
        """Send one command. Raises `ValkeyUnavailable` at once when there is no connection."""
        if self._wire is None:
            raise ValkeyUnavailable("Valkey cannot be reached.")
        return self._wire.call(*arguments)

    async def run(self, name: str, keys: list[str], arguments: list[Argument]) -> Reply:
        """A function of our library; a server that does not have it gets it."""
        command: tuple[Argument, ...] = ("FCALL", LIBRARY.function(name), len(keys), *keys, *arguments)
        try:
            return await self.call(*command)
        except ValkeyError as error:
            if not is_unknown_function(error):
                raise
        await self.call("FUNCTION", "LOAD", "REPLACE", LIBRARY.source)
        return await self.call(*command)

    async def _connect(self) -> None:
        address = self._address
        loop = asyncio.get_running_loop()

        def make() -> _Wire:
            return _Wire(self._when_lost, self._on_push)

        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.path is not None:
                _, wire = await loop.create_unix_connection(make, address.path)
            else:
                context = ssl.create_default_context() if address.use_tls else None
                _, wire = await loop.create_connection(make, address.host, address.port, ssl=context)
            if address.password:
                user = (address.username,) if address.username else ()
                await wire.call("AUTH", *user, address.password)
            if address.database:
                await wire.call("SELECT", address.database)
            if self._channels:
                wire.write("SUBSCRIBE", *self._channels)
                await wire.call("PING")
            self._lost.clear()
            self._wire = wire
        if self._on_connected is not None:
            await self._on_connected()

    def _when_lost(self, wire: _Wire) -> None:
        if wire is self._wire:
            self._wire = None
            self._lost.set()

    async def _keep(self) -> None:
        pause_s = RECONNECT_S[0]
        while True:
            if self._wire is None:
                try:
                    await self._connect()
                    logger.info("valkey_connected")
                    pause_s = RECONNECT_S[0]
                except (OSError, TimeoutError, ValkeyError, ValkeyUnavailable) as error:
                    logger.warning("valkey_unreachable error=%s", type(error).__name__)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RECONNECT_S[1])
                continue
            await self._watch(self._wire)

    async def _watch(self, wire: _Wire) -> None:
        """Until it is lost: cut a connection whose oldest command has no reply in time, and probe a silent one."""
        was_stalled = False
        while self._wire is wire:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await self._lost.wait()
            is_stalled = wire.is_stalled()
            # At the second look: where the machine stood still, Valkey did, too, and has an answer in a moment.
            if is_stalled and was_stalled:
                logger.warning("valkey_stalled timeout_s=%s", TIMEOUT_S)
                wire.abort()
            elif self._channels and self._wire is wire and not is_stalled:
                # A dead peer would otherwise look like one that has nothing to say.
                wire.call("PING").add_done_callback(lambda future: future.cancelled() or future.exception())
            was_stalled = is_stalled

"""What the gateway keeps of its stores: a connection that outlives a pause of the process, lists that are never old."""

from __future__ import annotations

import asyncio

import pytest

from api import cors, valkey
from api.cors import Origins
from api.valkey import Valkey, ValkeyUnavailable


async def test_a_valkey_that_stood_still_is_given_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a whole machine stood still, the time is over before Valkey could say a word."""
    monkeypatch.setattr(valkey, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(valkey, "WATCH_INTERVAL_S", 0.2)
    looked = asyncio.Event()
    look = valkey._Wire.is_stalled

    def is_stalled(wire: valkey._Wire) -> bool:
        if found := look(wire):
            looked.set()
        return found

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        await looked.wait()
        writer.write(b"+PONG\r\n")
        await reader.read()
        writer.close()

    monkeypatch.setattr(valkey._Wire, "is_stalled", is_stalled)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as late:
        connection = Valkey(f"redis://127.0.0.1:{late.sockets[0].getsockname()[1]}")
        await connection.start()
        try:
            assert await connection.call("PING") == b"PONG"
            assert looked.is_set()
        finally:
            await connection.close()


async def test_a_valkey_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(valkey, "WATCH_INTERVAL_S", 0.05)

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as silent:
        connection = Valkey(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        await connection.start()
        try:
            with pytest.raises(ValkeyUnavailable, match="broke"):
                await connection.call("PING")
        finally:
            await connection.close()


async def test_origins_that_change_while_they_are_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = Origins()
    lists = [["https://old.example"], ["https://new.example"]]

    def read() -> list[str]:
        if len(lists) == 2:
            origins.forget()
        return lists.pop(0)

    monkeypatch.setattr(cors, "all_allowed_origins", read)

    async def is_allowed(origin: str) -> bool:
        headers = {b"origin": origin.encode(), b"access-control-request-method": b"POST"}
        return ("access-control-allow-origin", origin) in await origins.preflight_headers(headers, ["POST"])

    assert await is_allowed("https://old.example")
    assert await is_allowed("https://new.example")
    assert not await is_allowed("https://old.example")

"""The client's promises: buffers that never block, broken sessions that are told, deadlines, and typed errors."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from inference_grpc import client as client_module
from inference_grpc.client import EngineClient
from inference_grpc.config import EngineConfig
from inference_grpc.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest
from inference_grpc.events import (
    ChoiceFinished,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from inference_grpc.server.process import EngineServer
from tests.inference_grpc.rig import PATIENCE_S, ManualBackend, Rig, Start, all_events, request_of, text_of, until


async def test_next_gives_all_that_waits_with_fragments_joined(manual: Rig) -> None:
    stream = manual.submit("hi")
    await until(lambda: manual.backend.submitted)
    (key,) = manual.backend.submitted
    events = [
        Started(3, 1),
        ReasoningDelta("let ", 1),
        ReasoningDelta("me see", 2),
        TextDelta("It ", 3),
        TextDelta("is", 4),
        TextDelta(" two", 5, choice=1),
        ToolCallStart(0, "call_1", "add", 6),
        ToolCallArguments('{"a":', 7),
        ToolCallArguments("1}", 8),
        ChoiceFinished("tool_calls"),
        Finished(Usage(3, 1, 8, 2)),
    ]
    for event in events:
        manual.backend.on_step([(key, event)])
    await until(lambda: stream.is_ended)
    assert await stream.next() == [
        Started(3, 1, manual.client.fingerprint),
        ReasoningDelta("let me see", 2),
        TextDelta("It is", 4),
        TextDelta(" two", 5, choice=1),
        ToolCallStart(0, "call_1", "add", 6),
        ToolCallArguments('{"a":1}', 8),
        ChoiceFinished("tool_calls"),
        Finished(Usage(3, 1, 8, 2)),
    ]
    assert stream.usage == Usage(3, 1, 8, 2)
    assert await stream.next() == []


async def test_a_caller_that_does_not_read_is_cut_off_and_delays_nobody(start: Start) -> None:
    rig = await start(client={"buffer_bytes": 4000})
    slow = rig.submit("TOKENS:4000")
    others = [rig.submit("TOKENS:200") for _ in range(10)]
    for events in await asyncio.gather(*(all_events(other) for other in others)):
        assert isinstance(events[-1], Finished)
        assert len(text_of(events).split()) == 200
    await until(lambda: slow.is_ended)
    events = await all_events(slow)
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "slow_reader"
    said = len(text_of(events).split())
    assert events[-1].usage.completion_tokens == said
    assert sum(len(event.text) for event in events if isinstance(event, TextDelta)) <= 4100
    receipts = {receipt.request_id: receipt for receipt in await rig.receipts(11)}
    assert receipts[slow.request_id].status == "cancelled"
    assert said <= receipts[slow.request_id].usage.completion_tokens < 4000
    assert rig.client.open_streams == 0


async def test_a_broken_session_ends_every_stream_with_its_counts_and_is_opened_again(rig: Rig) -> None:
    streams = [rig.submit("THINK: one two three SAY: a b c d e f g h PACE:100 STALL:9"), rig.submit("BREAK:6 PACE:100")]
    for stream in streams:
        events = await all_events(stream)
        last = events[-1]
        assert isinstance(last, Failed)
        assert last.code == "engine_unavailable"
        assert last.usage.completion_tokens >= 5
        assert last.usage.completion_tokens == max(e.completion_tokens for e in events if isinstance(e, TextDelta))
    assert streams[0].usage.reasoning_tokens == 3
    await rig.client.connect(PATIENCE_S)
    assert isinstance((await rig.run("TOKENS:2"))[-1], Finished)


async def fails_at_once(client: EngineClient) -> bool:
    """Whether a request without an engine is refused, or failed by the attempt to connect that is under way."""
    try:
        stream = client.submit(request_of("hi"))
    except EngineUnavailable as error:
        return "cannot be reached" in error.message
    (failed,) = await asyncio.wait_for(all_events(stream), PATIENCE_S)
    return isinstance(failed, Failed) and failed.code == "engine_unavailable"


async def test_the_session_comes_back_when_the_engine_does(config: EngineConfig) -> None:
    server = EngineServer(config)
    await server.start()
    async with EngineClient(server.address) as client:
        await client.connect(PATIENCE_S)
        stalled = client.submit(request_of("STALL:1"))
        await stalled.next()
        await server.drain(0)
        assert (await all_events(stalled))[-1].code == "engine_shutdown"  # type: ignore[union-attr]
        await until(lambda: not client.is_connected)
        for _ in range(20):
            assert await fails_at_once(client)
        async with EngineServer(replace(config, listen=server.address)):
            await client.connect(PATIENCE_S)
            assert isinstance((await all_events(client.submit(request_of("TOKENS:2"))))[-1], Finished)


async def test_requests_made_before_the_session_stands_are_sent_when_it_does(config: EngineConfig) -> None:
    async with EngineServer(config) as server, EngineClient(server.address) as client:
        streams = [client.submit(request_of("TOKENS:2")) for _ in range(5)]
        for stream in streams:
            assert isinstance((await all_events(stream))[-1], Finished)


async def test_an_engine_that_is_slow_to_answer_is_waited_for(config: EngineConfig) -> None:
    """It takes the connection at once, as the kernel does for a process that stands still, and speaks later."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async with EngineServer(config) as server:
        host, _, port = server.address.rpartition(":")

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.5)
            to_engine = await asyncio.open_connection(host, int(port))
            for pair in ((reader, to_engine[1]), (to_engine[0], writer)):
                tasks.add(asyncio.create_task(pump(*pair)))

        async with await asyncio.start_server(take, "127.0.0.1", 0) as slow:
            address = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
            async with EngineClient(address, timeout_s=PATIENCE_S) as client:
                assert (await client.get_info()).engine_id
                assert isinstance((await all_events(client.submit(request_of("TOKENS:2"))))[-1], Finished)
        for task in tasks:
            task.cancel()


async def test_an_engine_that_is_not_there_is_said_to_be_so(unused_tcp_port: int) -> None:
    async with EngineClient(f"127.0.0.1:{unused_tcp_port}") as client:
        (failed,) = await all_events(client.submit(request_of("hi")))
        assert isinstance(failed, Failed)
        assert failed.code == "engine_unavailable"
        with pytest.raises(EngineUnavailable):
            await client.connect(0.2)
        with pytest.raises(EngineUnavailable):
            await client.get_info()
        assert not await client.is_serving()


async def test_unary_calls_have_a_deadline(start: Start) -> None:
    is_over = threading.Event()

    class Stuck(ManualBackend):
        def count_tokens(self, prompt: object) -> int:
            is_over.wait(PATIENCE_S)
            return 1

    rig = await start(backend=Stuck(), client={"timeout_s": 0.1})
    with pytest.raises(DeadlineExceeded):
        await rig.client.count_tokens("hi")
    is_over.set()


async def test_errors_keep_their_class_and_fields(rig: Rig) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await rig.client.list_receipts(acknowledge_through=99)
    assert refused.value.fields == {"param": "acknowledge_through", "last_sequence": "0"}


async def test_leaving_the_stream_cancels_it(rig: Rig) -> None:
    async with rig.submit("STALL:3") as stream:
        await stream.next()
    assert (await all_events(stream))[-1].cancelled  # type: ignore[union-attr]


async def test_closing_the_client_ends_its_streams(rig: Rig) -> None:
    client = EngineClient(rig.server.address)
    stream = client.submit(request_of("STALL:1"))
    await stream.next()
    await client.close()
    await client.close()
    assert (await all_events(stream))[-1].code == "engine_unavailable"  # type: ignore[union-attr]
    with pytest.raises(EngineUnavailable, match="closed"):
        client.submit(request_of("hi"))


async def test_a_row_that_cannot_be_read_breaks_the_session_and_not_the_client(
    manual: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*row: object) -> None:
        raise ValueError("Row kind 99 is not known.")

    stream = manual.submit("hi")
    await until(lambda: manual.backend.submitted)
    with monkeypatch.context() as patch:
        patch.setattr(client_module, "event_from_row", unreadable)
        manual.backend.on_step([(manual.backend.submitted[0], Started(3, 0))])
        (failed,) = await all_events(stream)
    assert failed.code == "engine_unavailable"  # type: ignore[union-attr]
    await manual.client.connect(PATIENCE_S)
    manual.submit("hi")
    await until(lambda: len(manual.backend.submitted) == 2)


def test_a_client_that_was_not_closed_does_not_hold_up_the_end_of_the_loop(unused_tcp_port: int) -> None:
    async def leave_open() -> None:
        client = EngineClient(f"127.0.0.1:{unused_tcp_port}")
        await all_events(client.submit(request_of("hi")))

    began = time.monotonic()
    asyncio.run(leave_open())
    assert time.monotonic() - began < PATIENCE_S / 2


class BrokenCall:
    """A session whose engine has just gone, as grpc.aio shows it."""

    async def read(self) -> object:
        raise RuntimeError("gone")

    async def write(self, message: object) -> None:
        raise RuntimeError("gone")


async def test_a_close_while_the_session_breaks_is_not_lost() -> None:
    client = EngineClient("127.0.0.1:1")
    session = asyncio.create_task(client._use(BrokenCall()))
    await asyncio.sleep(0)  # the read has failed by now, and the writer is being stopped
    session.cancel()
    await asyncio.wait([session])
    assert session.cancelled()
    await client.close()

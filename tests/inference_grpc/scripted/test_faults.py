"""Faults and timings to order, seen from a client of a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from inference_grpc.client import EngineClient
from inference_grpc.events import Failed, Finished, Started
from tests.inference_grpc.rig import PATIENCE_S, EngineProcess, Rig, Start, all_events, request_of, text_of


async def test_a_failure_comes_after_the_ordered_number_of_tokens(rig: Rig) -> None:
    events = await rig.run("FAIL:502@3")
    assert isinstance(events[-1], Failed)
    assert (events[-1].code, events[-1].usage.completion_tokens) == ("device_fault", 3)
    assert len(text_of(events).split()) == 3


async def test_a_failure_before_the_first_token_comes_alone_and_is_journalled(rig: Rig) -> None:
    (failed,) = await rig.run("FAIL:device_fault")
    assert isinstance(failed, Failed)
    (receipt,) = await rig.receipts(1)
    assert (receipt.status, receipt.error_code, receipt.usage.completion_tokens) == ("failed", "device_fault", 0)


async def test_a_stall_lasts_until_it_is_cancelled(rig: Rig) -> None:
    stream = rig.submit("STALL:4")
    while stream.usage.completion_tokens < 4:
        await stream.next()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.next(), 0.05)
    stream.cancel()
    last = (await all_events(stream))[-1]
    assert isinstance(last, Finished)
    assert (last.cancelled, last.usage.completion_tokens) == (True, 4)


async def test_a_worker_that_ignores_cancel_finishes_its_answer(rig: Rig) -> None:
    stream = rig.submit("TOKENS:40 PACE:400 IGNORE_CANCEL")
    await stream.next()
    stream.cancel()
    last = (await all_events(stream))[-1]
    assert isinstance(last, Finished)
    assert (last.cancelled, last.usage.completion_tokens) == (False, 40)


async def test_receipts_can_be_wrong_or_missing(rig: Rig) -> None:
    streams = {order: rig.submit(f"TOKENS:10 {order}") for order in ("RECEIPT:+5", "RECEIPT:-3", "RECEIPT:drop", "")}
    for stream in streams.values():
        assert (await all_events(stream))[-1].usage.completion_tokens == 10  # type: ignore[union-attr]
    told = {receipt.request_id: receipt.usage.completion_tokens for receipt in await rig.receipts(3)}
    assert told == {
        streams["RECEIPT:+5"].request_id: 15,
        streams["RECEIPT:-3"].request_id: 7,
        streams[""].request_id: 10,
    }


async def test_pace_first_token_and_cached_tokens_are_kept(rig: Rig) -> None:
    began = time.monotonic()
    events = await rig.run("TOKENS:20 PACE:100 TTFT:100 CACHED:2")
    took = time.monotonic() - began
    assert isinstance(events[0], Started)
    assert events[0].cached_tokens == 2
    # 0.1 s to the first token, then 19 gaps of 10 ms; more on a busy machine.
    assert took > 0.28
    assert len(text_of(events).split()) == 20


async def test_as_many_requests_are_taken_as_may_run_and_wait(start: Start) -> None:
    rig = await start(max_sequences=3, queue_limit=2)
    streams = [rig.submit("TOKENS:30") for _ in range(5)]
    for stream in streams:
        assert isinstance((await all_events(stream))[-1], Finished)


async def test_a_higher_priority_runs_first(start: Start) -> None:
    rig = await start(max_sequences=1)
    ended: list[str] = []

    async def run(name: str, priority: int) -> None:
        await rig.run("TOKENS:20", priority=priority)
        ended.append(name)

    blocker = rig.submit("STALL:1")
    await blocker.next()
    tasks = [asyncio.create_task(run("low", 0)), asyncio.create_task(run("high", 1))]
    while (await rig.client.get_info()).waiting < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    blocker.cancel()
    await asyncio.gather(*tasks)
    assert ended == ["high", "low"]


async def test_a_waiting_request_is_cancelled_without_having_started(start: Start) -> None:
    rig = await start(max_sequences=1)
    blocker = rig.submit("STALL:1")
    await blocker.next()
    stream = rig.submit("TOKENS:5")
    stream.cancel()
    (last,) = await all_events(stream)
    assert isinstance(last, Finished)
    assert (last.cancelled, last.usage.prompt_tokens) == (True, 0)


async def test_the_process_dies_to_order(start_process: Callable[..., EngineProcess]) -> None:
    engine = start_process()
    async with EngineClient(engine.address, timeout_s=PATIENCE_S) as client:
        stream = client.submit(request_of("EXIT:3"))
        last = (await all_events(stream))[-1]
        assert isinstance(last, Failed)
        assert (last.code, last.usage.completion_tokens) == ("engine_unavailable", 3)
    assert await asyncio.to_thread(engine.process.wait, PATIENCE_S) == -9


async def test_thousands_of_tokens_a_second_reach_one_client(start: Start) -> None:
    rig = await start(max_sequences=64)
    began = time.process_time()

    async def work() -> None:
        for _ in range(4):
            assert len(text_of(await rig.run("TOKENS:100")).split()) == 100

    await asyncio.gather(*(work() for _ in range(64)))
    # 25,600 tokens; a core takes under a second. The bound only catches a fall of an order of magnitude.
    assert time.process_time() - began < 10

"""What a gateway may rely on: order, cumulative counts, cancellation, and that one session never delays another."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import grpc
import pytest

from inference_grpc.client import EngineClient
from inference_grpc.core.request import Request
from inference_grpc.events import ChoiceFinished, Failed, Finished, Started, TextDelta, Usage
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.protos.v1 import inference_pb2_grpc as pb_grpc
from inference_grpc.server import outbox as outbox_module
from tests.inference_grpc.rig import Rig, Start, all_events, request_of, text_of, until


async def read_all(call: Any) -> list[int]:
    """The kinds of all rows until the call ends."""
    kinds: list[int] = []
    while (step := await call.read()) is not grpc.aio.EOF:
        kinds += step.kinds
    return kinds


async def test_events_come_in_order_and_count_up(rig: Rig) -> None:
    streams = [rig.submit("TOKENS:30", n=2) for _ in range(8)]
    for stream in streams:
        events = await all_events(stream)
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        counts = [event.completion_tokens for event in events if isinstance(event, TextDelta)]
        assert all(earlier < later for earlier, later in pairwise(counts))
        assert counts[-1] == events[-1].usage.completion_tokens == 60
        assert [event.choice for event in events if isinstance(event, ChoiceFinished)] == [0, 1]
        for choice in (0, 1):
            words = "".join(e.text for e in events if isinstance(e, TextDelta) and e.choice == choice).split()
            assert len(words) == 30


async def test_cancel_reaches_the_backend_before_its_next_step(manual: Rig) -> None:
    stream, other = manual.submit("one"), manual.submit("two")
    await until(lambda: len(manual.backend.submitted) == 2)
    key, other_key = manual.backend.submitted
    manual.backend.on_step([(key, Started(3, 0)), (other_key, Started(3, 0))])
    manual.backend.on_step([(key, TextDelta("a", 1)), (other_key, TextDelta("a", 1))])
    await stream.next()
    stream.cancel()
    await until(lambda: manual.backend.cancelled == [key])
    events = await all_events(stream)
    assert isinstance(events[-1], Finished)
    assert events[-1].cancelled
    assert not other.is_ended


async def test_a_cancelled_request_makes_at_most_one_more_token(start: Start) -> None:
    rig = await start()
    stream = rig.submit("TOKENS:500 PACE:50")
    while stream.usage.completion_tokens < 3:
        await stream.next()
    said = stream.usage.completion_tokens
    stream.cancel()
    last = (await all_events(stream))[-1]
    assert isinstance(last, Finished)
    assert last.cancelled
    assert said <= last.usage.completion_tokens <= said + 1
    (receipt,) = await rig.receipts(1)
    assert (receipt.status, receipt.usage) == ("cancelled", last.usage)


async def test_a_final_only_request_gets_one_delta(rig: Rig) -> None:
    events = await rig.run("TOKENS:40", final_only=True)
    assert [type(event) for event in events] == [Started, TextDelta, ChoiceFinished, Finished]
    assert len(text_of(events).split()) == 40
    assert events[1].completion_tokens == 40  # type: ignore[union-attr]


async def test_steps_that_wait_are_joined_and_keep_their_order(manual: Rig) -> None:
    """A gateway that does not read for a while gets everything later, in few rows, while the engine never waited."""
    async with grpc.aio.insecure_channel(manual.server.address) as channel:
        call = pb_grpc.InferenceStub(channel).Session()
        await call.initial_metadata()
        for handle in (1, 2):
            await call.write(pb.SessionRequest(submit=pb.GenerateRequest(handle=handle, text="hi")))
        await until(lambda: len(manual.backend.submitted) == 2)
        keys = manual.backend.submitted
        piece = "x" * 2000
        # More than the transport buffers, so that the server's writer is certainly held up.
        steps = 4000
        for number in range(1, steps + 1):
            manual.backend.on_step([(key, TextDelta(f"{number} {piece} ", number)) for key in keys])
            if number % 500 == 0:
                other = manual.submit("not held up")
                await until(lambda wanted=2 + number // 500: len(manual.backend.submitted) == wanted)
                manual.backend.on_step([(manual.backend.submitted[-1], Finished(Usage(3, 0, 0)))])
                assert isinstance((await all_events(other))[-1], Finished)
        manual.backend.on_step([(key, Finished(Usage(3, 0, steps))) for key in keys])

        texts: dict[int, list[str]] = {1: [], 2: []}
        counts: dict[int, list[int]] = {1: [], 2: []}
        rows, finished = 0, 0
        while finished < 2:
            step = await call.read()
            for handle, kind, count, text in zip(
                step.handles, step.kinds, step.completion_tokens, step.texts, strict=True
            ):
                rows += 1
                finished += kind == pb.FINISHED
                texts[handle].append(text)
                counts[handle].append(count)
        for handle in (1, 2):
            numbers = [int(word) for word in "".join(texts[handle]).split() if word != piece]
            assert numbers == list(range(1, steps + 1))
            assert counts[handle] == sorted(counts[handle])
            assert counts[handle][-1] == steps
        assert rows < steps


async def test_a_session_that_is_never_read_is_broken_off_and_cancelled(
    manual: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "PENDING_BYTES", 1 << 20)
    async with grpc.aio.insecure_channel(manual.server.address) as channel:
        call = pb_grpc.InferenceStub(channel).Session()
        await call.initial_metadata()
        await call.write(pb.SessionRequest(submit=pb.GenerateRequest(handle=1, text="hi")))
        await until(lambda: manual.backend.submitted)
        (key,) = manual.backend.submitted
        count = 0

        def keep_on() -> bool:
            nonlocal count
            for _ in range(20):
                count += 1
                manual.backend.on_step([(key, TextDelta("y" * 10_000, count))])
            return bool(manual.backend.cancelled)

        await until(keep_on)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    (receipt,) = await manual.receipts(1)
    assert receipt.status == "cancelled"


async def test_a_session_that_breaks_cancels_its_requests_and_leaves_receipts(rig: Rig) -> None:
    gone = EngineClient(rig.server.address)
    ids = []
    for _ in range(3):
        stream = gone.submit(request_of("TOKENS:8000 PACE:100"))
        ids.append(stream.request_id)
        while not stream.usage.completion_tokens:
            await stream.next()
    other = rig.submit("TOKENS:30")
    await gone.close()
    receipts = await rig.receipts(3)
    cancelled = {receipt.request_id: receipt for receipt in receipts if receipt.status == "cancelled"}
    assert set(ids) == set(cancelled)
    assert all(0 < receipt.usage.completion_tokens < 8000 for receipt in cancelled.values())
    assert isinstance((await all_events(other))[-1], Finished)


async def test_a_half_closed_session_still_answers_what_is_open(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(rig.server.address) as channel:
        call = pb_grpc.InferenceStub(channel).Session()
        await call.write(pb.SessionRequest(submit=pb.GenerateRequest(handle=5, text="TOKENS:20")))
        await call.done_writing()
        assert (await read_all(call))[-1] == pb.FINISHED
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([pb.GenerateRequest(handle=1, text="STALL:0")] * 2, grpc.StatusCode.INVALID_ARGUMENT),
        ([None], grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["a handle twice", "neither submit nor cancel"],
)
async def test_a_session_that_breaks_the_protocol_is_ended(rig: Rig, messages, status) -> None:  # type: ignore[no-untyped-def]
    async with grpc.aio.insecure_channel(rig.server.address) as channel:
        call = pb_grpc.InferenceStub(channel).Session()
        for message in messages:
            await call.write(pb.SessionRequest(submit=message))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
        assert failure.value.code() is status
    await until(lambda: rig.server._dispatcher.open_requests == 0)


async def test_a_deadline_ends_a_request_that_runs(rig: Rig) -> None:
    # A busy machine needs more time to say two words before the deadline.
    for grace_ms in (150, 3_000, 60_000):
        events = await rig.run("STALL:2", deadline_unix_ms=int(time.time() * 1000) + grace_ms)
        assert isinstance(events[-1], Failed)
        assert events[-1].code == "deadline_exceeded"
        if events[-1].usage.completion_tokens == 2:
            break
    else:
        raise AssertionError("no deadline was long enough")
    receipt = (await rig.receipts(1))[-1]
    assert (receipt.status, receipt.error_code) == ("failed", "deadline_exceeded")


async def test_refusals_name_their_reason_and_leave_no_receipt(start: Start) -> None:
    rig = await start(max_sequences=1, queue_limit=1)
    past = int(time.time() * 1000) - 1
    refused = {
        "invalid_request": rig.submit("hi", n=1000),
        "model_not_served": rig.submit("hi", model="gpt-other"),
        "context_length_exceeded": rig.submit("hi", max_tokens=100_000),
        "unsupported_schema": rig.submit("REFUSE:unsupported_schema"),
        "deadline_exceeded": rig.submit("hi", deadline_unix_ms=past),
    }
    for code, stream in refused.items():
        events = await all_events(stream)
        assert [event.code for event in events if isinstance(event, Failed)] == [code]
        assert len(events) == 1
    running = [rig.submit("STALL:1") for _ in range(2)]
    while not running[0].usage.completion_tokens:
        await running[0].next()
    (full,) = await rig.run("hi")
    assert (full.code, full.fields["limit"]) == ("engine_overloaded", "1")  # type: ignore[union-attr]
    assert (await rig.client.list_receipts()).receipts == []


async def test_a_failure_of_the_backend_while_it_prepares_fails_that_request_only(manual: Rig) -> None:
    manual.backend.prepare_error = ZeroDivisionError("a bug")
    (failed,) = await manual.run("hi")
    assert isinstance(failed, Failed)
    assert failed.code == "engine_error"
    assert "a bug" not in failed.message
    manual.backend.prepare_error = None
    manual.submit("hi")
    await until(lambda: manual.backend.submitted)


async def test_a_request_without_an_id_gets_one_on_its_receipt(rig: Rig) -> None:
    await all_events(rig.client.submit(Request("", "TOKENS:1")))
    (receipt,) = await rig.receipts(1)
    assert len(receipt.request_id) == 36

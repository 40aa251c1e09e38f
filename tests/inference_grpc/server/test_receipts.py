"""The journal: nothing that ran is forgotten before it was acknowledged, and nothing twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from inference_grpc.client import EngineClient
from inference_grpc.errors import InvalidRequest
from inference_grpc.events import Failed, Finished, Usage
from inference_grpc.server.receipts import Admission, JournalInUse, Receipt, ReceiptJournal
from tests.inference_grpc.rig import PATIENCE_S, EngineProcess, Rig, Start, all_events, request_of, until


def receipt_of(name: str) -> Receipt:
    return Receipt(name, "m", "7", "completed", Usage(5, 1, 9, 2), "", 1000, 2000, 12)


def read(journal: ReceiptJournal, after: int = 0, limit: int = 0, acknowledge_through: int = 0) -> list[str]:
    page = journal.list_receipts(after=after, limit=limit, acknowledge_through=acknowledge_through).result(10)
    return [receipt.request_id for receipt in page.receipts]


async def test_each_outcome_leaves_one_receipt_that_equals_what_the_client_was_told(rig: Rig) -> None:
    finals = {}
    for prompt in ("TOKENS:7 CACHED:2", "THINK: a b SAY: c", "FAIL:device_fault@3", "FAIL:device_fault"):
        stream = rig.submit(prompt)
        finals[stream.request_id] = (await all_events(stream))[-1]
    receipts = (await rig.client.list_receipts()).receipts
    assert [receipt.request_id for receipt in receipts] == list(finals)
    for receipt in receipts:
        final = finals[receipt.request_id]
        assert isinstance(final, Finished | Failed)
        assert receipt.usage == final.usage
        assert receipt.error_code == (final.code if isinstance(final, Failed) else "")
        assert receipt.tenant == "7"
        assert receipt.started_unix_ms <= receipt.finished_unix_ms
    assert [receipt.status for receipt in receipts] == ["completed", "completed", "failed", "failed"]
    assert [receipt.sequence for receipt in receipts] == [1, 2, 3, 4]


async def test_receipts_stay_until_they_are_acknowledged(rig: Rig) -> None:
    for _ in range(5):
        await rig.run("TOKENS:1")
    page = await rig.client.list_receipts(after=1, limit=2)
    assert ([receipt.sequence for receipt in page.receipts], page.last_sequence) == ([2, 3], 5)
    assert page.engine_id == (await rig.client.get_info()).engine_id
    page = await rig.client.list_receipts(acknowledge_through=3)
    assert [receipt.sequence for receipt in page.receipts] == [4, 5]
    with pytest.raises(InvalidRequest) as refused:
        await rig.client.list_receipts(acknowledge_through=6)
    assert refused.value.fields["last_sequence"] == "5"
    assert [receipt.sequence for receipt in (await rig.client.list_receipts()).receipts] == [4, 5]


def test_sequence_numbers_go_on_after_everything_was_acknowledged(tmp_path: Path) -> None:
    journal = ReceiptJournal(tmp_path)
    journal.finish(1, receipt_of("a"))
    assert read(journal, acknowledge_through=0) == ["a"]
    assert read(journal, acknowledge_through=1) == []
    engine_id = journal.engine_id
    journal.close()
    journal = ReceiptJournal(tmp_path)
    journal.finish(1, receipt_of("b"))
    assert read(journal, after=1) == ["b"]
    assert journal.engine_id == engine_id
    journal.close()


def test_a_second_process_cannot_write_the_same_journal(tmp_path: Path) -> None:
    journal = ReceiptJournal(tmp_path)
    with pytest.raises(JournalInUse, match="ENGINE_JOURNAL_DIR"):
        ReceiptJournal(tmp_path)
    journal.close()
    ReceiptJournal(tmp_path).close()


async def test_a_killed_engine_owns_up_to_what_it_lost(start_process: Callable[..., EngineProcess]) -> None:
    engine = start_process("--max-sequences", "8")
    async with EngineClient(engine.address, timeout_s=PATIENCE_S) as client:
        done = client.submit(request_of("TOKENS:4"))
        finished = (await all_events(done))[-1]
        running = [client.submit(request_of("TOKENS:8000 PACE:100")) for _ in range(4)]
        # Long enough for the counts to be journalled once.
        while min(stream.usage.completion_tokens for stream in running) < 130:
            await asyncio.gather(*(stream.next() for stream in running))
        engine.process.kill()
        for stream in running:
            last = (await all_events(stream))[-1]
            assert isinstance(last, Failed)
            assert last.code == "engine_unavailable"
            assert last.usage.completion_tokens >= 130

    again = start_process()
    assert again.engine_id == engine.engine_id
    async with EngineClient(again.address, timeout_s=PATIENCE_S) as client:
        receipts = {receipt.request_id: receipt for receipt in (await client.list_receipts()).receipts}
    assert set(receipts) == {done.request_id, *(stream.request_id for stream in running)}
    assert isinstance(finished, Finished)
    assert (receipts[done.request_id].status, receipts[done.request_id].usage) == ("completed", finished.usage)
    for stream in running:
        receipt = receipts[stream.request_id]
        assert (receipt.status, receipt.error_code) == ("lost", "engine_lost")
        assert 0 < receipt.usage.completion_tokens <= stream.usage.completion_tokens
        assert receipt.usage.prompt_tokens == stream.usage.prompt_tokens


async def test_sigterm_refuses_new_requests_and_lets_the_running_ones_finish(
    start_process: Callable[..., EngineProcess],
) -> None:
    engine = start_process("--drain-s", "600")
    async with EngineClient(engine.address, timeout_s=PATIENCE_S) as client:
        running, stalled = (client.submit(request_of(order)) for order in ("TOKENS:60 PACE:100", "STALL:1"))
        while not (running.usage.completion_tokens and stalled.usage.completion_tokens):
            await asyncio.gather(running.next(), stalled.next())
        assert await client.is_serving()
        engine.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            while await client.is_serving():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (refused,) = await all_events(client.submit(request_of("TOKENS:1")))
        assert isinstance(refused, Failed)
        assert refused.code == "engine_shutdown"
        last = (await all_events(running))[-1]
        assert isinstance(last, Finished)
        assert last.usage.completion_tokens == 60
        # As long as one runs the process is there to refuse.
        stalled.cancel()
        assert await asyncio.to_thread(engine.process.wait, PATIENCE_S) == 0


async def test_a_drain_past_its_grace_fails_what_still_runs_and_journals_it(
    start_process: Callable[..., EngineProcess],
) -> None:
    engine = start_process("--drain-s", "0")
    async with EngineClient(engine.address, timeout_s=PATIENCE_S) as client:
        stalled = client.submit(request_of("STALL:2"))
        while stalled.usage.completion_tokens < 2:
            await stalled.next()
        engine.process.send_signal(signal.SIGTERM)
        last = (await all_events(stalled))[-1]
        assert isinstance(last, Failed)
        assert (last.code, last.usage.completion_tokens) == ("engine_shutdown", 2)
        assert await asyncio.to_thread(engine.process.wait, PATIENCE_S) == 0
    again = start_process()
    async with EngineClient(again.address, timeout_s=PATIENCE_S) as client:
        (receipt,) = (await client.list_receipts()).receipts
    assert (receipt.status, receipt.error_code, receipt.usage) == ("failed", "engine_shutdown", last.usage)


async def test_the_final_event_waits_for_its_receipt(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await start()
    commit = ReceiptJournal._commit
    allowed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(self: ReceiptJournal, writes: list[object]) -> bool:
        asyncio.run_coroutine_threadsafe(allowed.wait(), loop).result()
        return commit(self, writes)  # type: ignore[arg-type]

    monkeypatch.setattr(ReceiptJournal, "_commit", held)
    stream = rig.submit("TOKENS:5")
    while stream.usage.completion_tokens < 5:
        await stream.next()
    assert not stream.is_ended
    allowed.set()
    assert isinstance((await all_events(stream))[-1], Finished)


async def test_a_disk_that_refuses_stops_new_requests_not_the_running_ones_and_loses_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    write = ReceiptJournal._write
    is_broken = True

    def failing(self: ReceiptJournal, item: object) -> None:
        if is_broken:
            raise sqlite3.OperationalError("disk is full")
        write(self, item)  # type: ignore[arg-type]

    monkeypatch.setattr(ReceiptJournal, "_write", failing)
    stream = rig.submit("TOKENS:30")
    assert isinstance((await all_events(stream))[-1], Finished)
    (refused,) = await rig.run("TOKENS:1")
    assert isinstance(refused, Failed)
    assert refused.code == "engine_unavailable"
    assert "disk is full" in refused.message
    is_broken = False
    await until(lambda: rig.server._journal.failure is None)
    (receipt,) = await rig.receipts(1)
    assert receipt.request_id == stream.request_id
    assert isinstance((await rig.run("TOKENS:1"))[-1], Finished)


def test_progress_of_a_dead_process_is_what_its_receipts_say(tmp_path: Path) -> None:
    journal = ReceiptJournal(tmp_path)
    journal.admit(Admission(1, "a", "m", "7", 1000, 5))
    journal.close()
    journal = ReceiptJournal(tmp_path)
    assert journal.lost == 1
    page = journal.list_receipts(after=0, limit=0, acknowledge_through=0).result(10)
    assert [(row.request_id, row.status, row.usage) for row in page.receipts] == [("a", "lost", Usage(5, 0, 0, 0))]
    journal.close()

"""Group commit and the outbox, against real PostgreSQL rows in threads of their own."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from api import metering as module
from api import outbox
from api.errors import ApiError
from api.metering import Metering
from api.outbox import OutboxFull
from billing.errors import RecordRefused
from billing.usage.services import FinishedRecord, OpenRecord

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Store:
    """Stands for PostgreSQL: takes batches, and fails on order."""

    def __init__(self) -> None:
        self.opened: list[list[uuid.UUID]] = []
        self.finished: list[list[uuid.UUID]] = []
        self.is_down = False
        self.bad: set[uuid.UUID] = set()
        self.ended: list[str] = []
        # A commit waits for `may_commit`, and says with `commits` that it does.
        self.commits, self.may_commit = threading.Event(), threading.Event()
        self.may_commit.set()

    def open_records(self, rows: Sequence[OpenRecord]) -> None:
        self.commits.set()
        assert self.may_commit.wait(60)
        self._check(rows)
        self.opened.append([row.request_id for row in rows])

    def finish_records(self, rows: Sequence[FinishedRecord]) -> dict[uuid.UUID, int]:
        self._check(rows)
        self.finished.append([row.request_id for row in rows])
        return {row.request_id: 7 for row in rows}

    def _check(self, rows: Sequence[Any]) -> None:
        if self.is_down:
            raise OperationalError("down")
        for row in rows:
            if row.request_id in self.bad:
                raise RecordRefused(row.request_id, "it is bad")

    @property
    def finished_ids(self) -> list[uuid.UUID]:
        return [request_id for batch in self.finished for request_id in batch]


class Connection:
    def __init__(self, store: Store) -> None:
        self._store = store

    def ensure_connection(self) -> None:
        if self._store.is_down:
            raise OperationalError("down")

    def cursor(self) -> Any:
        class Cursor:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None: ...

            def execute(self, sql: str) -> None: ...

        return Cursor()

    def close(self) -> None: ...


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(module, "open_records", store.open_records)
    monkeypatch.setattr(module, "finish_records", store.finish_records)
    monkeypatch.setattr(module, "note_gateway_end", store.ended.append)
    monkeypatch.setattr(module, "connection", Connection(store))
    monkeypatch.setattr(module, "close_old_connections", lambda: None)
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.02)
    return store


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    made: list[Metering] = []

    def start() -> Metering:
        made.append(Metering(tmp_path, f"gateway.{len(made) + 1}"))
        return made[-1]

    yield start
    for metering in made:
        await asyncio.get_running_loop().run_in_executor(None, metering.close)


Make = Callable[[], Metering]


def opening(request_id: uuid.UUID | None = None) -> OpenRecord:
    return OpenRecord(
        request_id=request_id or uuid.uuid4(),
        organization_id=1,
        project_id=1,
        api_key_id=1,
        model="m",
        price_id=1,
        deployment_id=1,
        protocol="chat",
        is_stream=True,
        hold_nano=1,
        started_at=NOW,
        gateway_id="g",
    )


def ending(request_id: uuid.UUID | None = None) -> FinishedRecord:
    return FinishedRecord(
        request_id=request_id or uuid.uuid4(),
        status="completed",
        prompt_tokens=3,
        cached_tokens=1,
        completion_tokens=2,
        reasoning_tokens=0,
        finish_reason="eos",
        error_code="",
        ttft_ms=1.5,
        duration_ms=2.5,
        finished_at=NOW,
    )


def kill(metering: Metering) -> None:
    """What the kernel does with a killed process: its files are closed and their locks gone, nothing else."""
    for segment in (metering._outbox._current, *metering._outbox._draining):
        segment.file.close()


def outbox_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.jsonl") if path.stat().st_size)


async def until(check: Callable[[], bool]) -> None:
    """What another thread does has no event to wait for."""
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_rows_that_queue_during_a_commit_are_one_batch(store: Store, make: Make) -> None:
    metering = make()
    rows = [opening() for _ in range(200)]
    store.may_commit.clear()
    first = metering.open(rows[0])
    await until(store.commits.is_set)
    others = [metering.open(row) for row in rows[1:]]
    store.may_commit.set()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in store.opened] == [1, 199]
    assert sorted(i for batch in store.opened for i in batch) == sorted(row.request_id for row in rows)


async def test_a_bad_row_fails_alone(store: Store, make: Make) -> None:
    metering = make()
    rows = [opening() for _ in range(20)]
    store.bad = {rows[7].request_id}
    results = await asyncio.gather(*(metering.open(row) for row in rows), return_exceptions=True)
    assert [i for i, result in enumerate(results) if result is not None] == [7]
    assert isinstance(results[7], ApiError)

    ends = [ending(row.request_id) for row in rows]
    costs = await asyncio.gather(*(metering.finish(row) for row in ends))
    assert [i for i, cost in enumerate(costs) if cost != 7] == [7]


async def test_without_postgresql_new_calls_are_refused_and_ends_are_kept(
    store: Store, make: Make, tmp_path: Path
) -> None:
    metering = make()
    store.is_down = True
    with pytest.raises(ApiError) as refusal:
        await metering.open(opening())
    assert refusal.value.code == "store_unavailable"
    with pytest.raises(ApiError):
        metering.refuse_when_down()
    end = ending()
    assert await metering.finish(end) is None
    assert [line for path in outbox_files(tmp_path) for line in path.read_text().splitlines()] != []

    store.is_down = False
    await until(lambda: end.request_id in store.finished_ids and not metering.is_down)
    metering.refuse_when_down()
    await metering.open(opening())


async def test_a_refused_call_has_its_record_once_postgresql_is_back(store: Store, make: Make) -> None:
    """An engine may have begun on it; its end waits for its opening, whoever hears first that PostgreSQL is back."""
    metering = make()
    store.is_down = True
    row = opening()
    with pytest.raises(ApiError):
        await metering.open(row)
    store.is_down = False
    metering._is_down.clear()
    await metering.finish(ending(row.request_id))
    await until(lambda: store.finished_ids == [row.request_id])
    assert store.opened == [[row.request_id]]


async def test_a_kill_loses_no_row(store: Store, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing threads have done nothing yet; all that the dead process was given comes to PostgreSQL."""
    first = make()
    monkeypatch.setattr(first._opens, "put", lambda *row: asyncio.get_running_loop().create_future())
    monkeypatch.setattr(first._finishes, "put", lambda *row: asyncio.get_running_loop().create_future())
    rows = [opening() for _ in range(4)]
    for row in rows:
        first.open(row)
    first.finish(ending(rows[0].request_id))
    kill(first)

    make()
    await until(lambda: store.ended == ["gateway.1"])
    assert [i for batch in store.opened for i in batch] == [row.request_id for row in rows]
    assert store.finished_ids == [rows[0].request_id]
    await until(lambda: not list(outbox_files(tmp_path)))


async def test_the_outbox_keeps_what_postgresql_has_not(
    store: Store, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "SEGMENT_BYTES", 1000)
    metering = make()
    for _ in range(30):
        await asyncio.gather(*(metering.open(opening()) for _ in range(10)))
    assert sum(len(path.read_bytes()) for path in outbox_files(tmp_path)) < 10 * 1000


async def test_no_call_begins_that_the_outbox_does_not_take(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    metering = make()
    monkeypatch.setattr(outbox, "SIZE_LIMIT_BYTES", 100)
    row = opening()
    await metering.open(row)
    with pytest.raises(ApiError) as refusal:
        metering.open(opening())
    assert refusal.value.code == "store_unavailable"
    with pytest.raises(ApiError):
        metering.refuse_when_down()
    assert await metering.finish(ending(row.request_id)) == 7, "PostgreSQL takes what the outbox cannot"


async def test_a_row_that_the_disk_cut_is_taken_back(store: Store, make: Make, tmp_path: Path) -> None:
    metering = make()
    segment = metering._outbox.append(opening())
    before = segment.path.read_bytes()

    class Cutting:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, line: bytes) -> int:
            return self._file.write(line[:10])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    segment.file = Cutting(segment.file)  # type: ignore[assignment]
    with pytest.raises(OutboxFull, match="No space left"):
        metering._outbox.append(opening())
    assert segment.path.read_bytes() == before


async def test_what_a_dead_process_left_is_delivered_by_the_next(store: Store, make: Make, tmp_path: Path) -> None:
    store.is_down = True
    first = make()
    ends = [ending() for _ in range(3)]
    await asyncio.gather(*(first.finish(end) for end in ends))
    # What was being written is torn.
    await asyncio.get_running_loop().run_in_executor(None, first.close)
    (left,) = outbox_files(tmp_path)
    with left.open("ab") as file:
        file.write(b'{"request_id": "torn')

    store.is_down = False
    make()
    await until(lambda: len(store.finished_ids) == 3)
    assert sorted(store.finished_ids) == sorted(end.request_id for end in ends)
    await until(lambda: not list(outbox_files(tmp_path)))


async def test_the_outbox_of_a_living_process_is_left_alone(store: Store, make: Make, tmp_path: Path) -> None:
    store.is_down = True
    first = make()
    await first.finish(ending())
    second = make()
    assert not second._outbox.is_due
    assert first._outbox.is_due
    assert store.ended == []


@pytest.fixture
def serve_unmetered(settings: Any) -> None:
    settings.UNMETERED_CALLS = "serve"


async def test_an_operator_may_serve_without_postgresql(
    store: Store, make: Make, serve_unmetered: None, tmp_path: Path
) -> None:
    metering = make()
    store.is_down = True
    rows = [opening() for _ in range(5)]
    await asyncio.gather(*(metering.open(row) for row in rows))
    metering.refuse_when_down()
    assert await asyncio.gather(*(metering.finish(ending(row.request_id)) for row in rows)) == [None] * 5
    assert store.opened == []

    store.is_down = False
    await until(lambda: len(store.finished_ids) == 5)
    assert sorted(i for batch in store.opened for i in batch) == sorted(row.request_id for row in rows)
    assert sorted(store.finished_ids) == sorted(row.request_id for row in rows)
    await until(lambda: not list(outbox_files(tmp_path)))


async def test_an_end_never_overtakes_the_opening_that_waits(store: Store, make: Make, serve_unmetered: None) -> None:
    metering = make()
    store.is_down = True
    row = opening()
    await metering.open(row)
    order: list[str] = []
    plain_open, plain_finish = store.open_records, store.finish_records

    def open_slowly(rows: Sequence[OpenRecord]) -> None:
        # PostgreSQL is back, the delivery under way, and the call ends just now.
        if rows:
            metering._is_down.clear()
            assert not metering.finish(ending(row.request_id)).done()
            plain_open(rows)
            order.append("opened")

    def finish(rows: Sequence[FinishedRecord]) -> dict[uuid.UUID, int]:
        order.extend("finished" for _ in rows)
        return plain_finish(rows)

    module.open_records, module.finish_records = open_slowly, finish  # put back by the store's monkeypatch
    store.is_down = False
    await until(lambda: "finished" in order)
    assert order == ["opened", "finished"]

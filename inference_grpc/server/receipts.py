"""The receipt journal: one durable row per request that ran, kept until a gateway acknowledges it.

A request is written down when it is admitted, now and then while it runs, and when it ends. What a killed process left
open becomes a receipt of status `lost` at the next start. All SQLite work happens on one thread, which commits in one
transaction whatever queued up during the commit before.
"""

from __future__ import annotations

import fcntl
import logging
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

from inference_grpc.errors import EngineError, InvalidRequest
from inference_grpc.events import Usage

logger = logging.getLogger(__name__)

ReceiptStatus = Literal["completed", "cancelled", "failed", "lost"]
BATCH_LIMIT = 5000  # operations of one transaction
RETRY_S = 0.5  # pause after a failed commit
PAGE_DEFAULT, PAGE_LIMIT = 1000, 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS open_requests (
    key INTEGER PRIMARY KEY, request_id TEXT NOT NULL, model TEXT NOT NULL, tenant TEXT NOT NULL,
    started_unix_ms INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS receipts (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL, model TEXT NOT NULL, tenant TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('completed', 'cancelled', 'failed', 'lost')),
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    error_code TEXT NOT NULL, started_unix_ms INTEGER NOT NULL, finished_unix_ms INTEGER NOT NULL,
    ttft_ms INTEGER NOT NULL);
"""
_COLUMNS = (
    "request_id, model, tenant, status, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, "
    "error_code, started_unix_ms, finished_unix_ms, ttft_ms"
)
_INSERT_RECEIPT = f"INSERT INTO receipts ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"  # noqa: S608  # our own constant
_CLOSE_LOST = (
    f"INSERT INTO receipts ({_COLUMNS}) "  # noqa: S608  # our own constant
    "SELECT request_id, model, tenant, 'lost', prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, "
    "'engine_lost', started_unix_ms, ?, 0 FROM open_requests ORDER BY key"
)


class JournalInUse(EngineError):
    """Another engine process writes this journal."""

    code = "journal_in_use"


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that begins to run. `key` is the server's, unique in this process."""

    key: int
    request_id: str
    model: str
    tenant: str
    started_unix_ms: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts so far of an open request: what its receipt says should the process die now."""

    key: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Receipt:
    request_id: str
    model: str
    tenant: str
    status: ReceiptStatus
    usage: Usage
    error_code: str
    started_unix_ms: int
    finished_unix_ms: int
    ttft_ms: int
    sequence: int = 0  # given by the journal


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an open request. No receipt is written when `receipt` is None; its open row goes all the same."""

    key: int
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    receipts: list[Receipt]
    last_sequence: int


@dataclass(frozen=True, slots=True)
class _Read:
    after: int
    limit: int
    acknowledge_through: int
    answer: Future[ReceiptPage]


_Write = Admission | Progress | Ending


class ReceiptJournal:
    """Opens (or makes) the journal in `directory` and closes what a dead process left open there.

    `on_written(keys)` is called from the journal's thread once the endings of these keys are on disk. When the disk
    refuses, it is called all the same, so that nobody waits for a broken disk: the rows are tried again until they are
    written, and `failure` says why not yet; the server takes no new request meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = (directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise JournalInUse(
                f"Another engine uses the journal in {directory}; give each its own ENGINE_JOURNAL_DIR (--journal).",
                directory=directory,
            ) from None
        self.failure: str | None = None
        self.on_written: Callable[[list[int]], None] = lambda keys: None
        self._queue: queue.SimpleQueue[_Write | _Read | None] = queue.SimpleQueue()
        # Only the journal's thread uses the connection after this constructor.
        self._database = sqlite3.connect(directory / "receipts.sqlite3", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        # A commit survives the loss of power, not only of the process.
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(_SCHEMA)
        self.engine_id, self.lost = self._recover()
        self._thread = threading.Thread(target=self._run, name="receipt-journal", daemon=True)
        self._thread.start()

    def admit(self, admission: Admission) -> None:
        self._queue.put(admission)

    def note_progress(self, progress: list[Progress]) -> None:
        for row in progress:
            self._queue.put(row)

    def finish(self, key: int, receipt: Receipt) -> None:
        self._queue.put(Ending(key, receipt))

    def list_receipts(self, *, after: int, limit: int, acknowledge_through: int) -> Future[ReceiptPage]:
        """Forget receipts up to `acknowledge_through`, then give those after `after`, oldest first.

        The future raises `InvalidRequest` when more is acknowledged than was ever written: that cursor belongs to
        another journal, and obeying it would lose receipts.
        """
        answer: Future[ReceiptPage] = Future()
        limit = min(limit or PAGE_DEFAULT, PAGE_LIMIT)
        self._queue.put(_Read(after, limit, acknowledge_through, answer))
        return answer

    def close(self) -> None:
        """Write what is queued and stop."""
        self._queue.put(None)
        self._thread.join()
        self._database.close()
        self._lock.close()

    def _recover(self) -> tuple[str, int]:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT OR IGNORE INTO meta VALUES ('engine_id', ?)", (str(uuid.uuid4()),))
        (engine_id,) = database.execute("SELECT value FROM meta WHERE name = 'engine_id'").fetchone()
        lost = database.execute(_CLOSE_LOST, (int(time.time() * 1000),)).rowcount
        database.execute("DELETE FROM open_requests")
        database.execute("COMMIT")
        return engine_id, lost

    # --- the journal's thread ---

    def _run(self) -> None:
        is_closing = False
        writes: list[_Write] = []
        while not is_closing:
            batch = [self._queue.get() if not writes else self._next_within(RETRY_S)]
            while len(batch) < BATCH_LIMIT and not self._queue.empty():
                batch.append(self._queue.get())
            is_closing = None in batch
            reads = [item for item in batch if isinstance(item, _Read)]
            new = [item for item in batch if isinstance(item, Admission | Progress | Ending)]
            keys = [item.key for item in new if isinstance(item, Ending)]
            writes += new
            if writes and self._commit(writes):
                writes = []
            if keys:
                self.on_written(keys)
            for read in reads:
                self._answer(read)

    def _next_within(self, timeout_s: float) -> _Write | _Read | Literal["timeout"] | None:
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return "timeout"

    def _commit(self, writes: list[_Write]) -> bool:
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            for write in writes:
                self._write(write)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            if self.failure is None:
                logger.error("journal_write_failed error=%r rows=%d", str(error), len(writes))
            self.failure = str(error)
            return False
        if self.failure is not None:
            logger.info("journal_recovered rows=%d", len(writes))
            self.failure = None
        return True

    def _write(self, write: _Write) -> None:
        execute = self._database.execute
        if isinstance(write, Admission):
            execute(
                "INSERT INTO open_requests (key, request_id, model, tenant, started_unix_ms, prompt_tokens) "
                "VALUES (?,?,?,?,?,?)",
                astuple(write),
            )
        elif isinstance(write, Progress):
            execute(
                "UPDATE open_requests SET prompt_tokens = ?, cached_tokens = ?, completion_tokens = ?, "
                "reasoning_tokens = ? WHERE key = ?",
                (*_counts(write.usage), write.key),
            )
        else:
            execute("DELETE FROM open_requests WHERE key = ?", (write.key,))
            if write.receipt is not None:
                execute(_INSERT_RECEIPT, _values(write.receipt))

    def _answer(self, read: _Read) -> None:
        try:
            read.answer.set_result(self._read(read))
        except (sqlite3.Error, InvalidRequest) as error:
            read.answer.set_exception(error)

    def _read(self, read: _Read) -> ReceiptPage:
        execute = self._database.execute
        row = execute("SELECT seq FROM sqlite_sequence WHERE name = 'receipts'").fetchone()
        last_sequence = row[0] if row else 0
        if read.acknowledge_through > last_sequence:
            raise InvalidRequest(
                f"acknowledge_through is {read.acknowledge_through}, the newest receipt is {last_sequence}: "
                f"the cursor is of another journal than {self.engine_id}.",
                param="acknowledge_through",
                last_sequence=last_sequence,
            )
        if read.acknowledge_through:
            execute("DELETE FROM receipts WHERE sequence <= ?", (read.acknowledge_through,))
        rows = execute(
            f"SELECT sequence, {_COLUMNS} FROM receipts WHERE sequence > ? ORDER BY sequence LIMIT ?",  # noqa: S608
            (read.after, read.limit),
        )
        return ReceiptPage([_receipt(row) for row in rows], last_sequence)


def _counts(usage: Usage) -> tuple[int, int, int, int]:
    """What an engine counts; only upstreams of another kind write to a cache at a price."""
    return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens


def _values(receipt: Receipt) -> tuple[object, ...]:
    return (
        receipt.request_id,
        receipt.model,
        receipt.tenant,
        receipt.status,
        *_counts(receipt.usage),
        receipt.error_code,
        receipt.started_unix_ms,
        receipt.finished_unix_ms,
        receipt.ttft_ms,
    )


def _receipt(row: tuple[int, str, str, str, ReceiptStatus, int, int, int, int, str, int, int, int]) -> Receipt:
    sequence, request_id, model, tenant, status, prompt, cached, completion, reasoning, code, started, ended, ttft = row
    usage = Usage(prompt, cached, completion, reasoning)
    return Receipt(request_id, model, tenant, status, usage, code, started, ended, ttft, sequence)

"""Opening and finishing rows of usage records, in groups: one transaction for all that queued during the last commit.

Each of the two has one thread with its own database connection, so the event loop never waits for PostgreSQL and a busy
gateway commits many rows at once without a timer.

Both kinds are in the outbox (api/outbox.py) before anything else happens to them, so a kill of this process loses none.

- `open`: no engine hears of the call before its row is in the outbox, and its first byte is held until the row has
  committed. Without PostgreSQL the call is refused; or, where the operator says UNMETERED_CALLS=serve, served. In both
  cases the row waits in the outbox: an engine may have begun.
- `finish`: what PostgreSQL does not take waits in the outbox, synced, and is delivered when PostgreSQL is back, by this
  process or the next. Delivering twice changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import Error, InterfaceError, OperationalError, close_old_connections, connection

from api.errors import ApiError
from api.outbox import Outbox, OutboxFull, Segment
from billing.errors import BillingError
from billing.reconciliation.services import note_gateway_end
from billing.usage.services import FinishedRecord, OpenRecord, finish_records, open_records

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
Answer = TypeVar("Answer")

GATEWAY_ID = f"{os.uname().nodename[:60]}-{os.getpid()}-{secrets.token_hex(3)}"
BATCH_LIMIT = 500
# Rows that wait while PostgreSQL is slow; past it new calls are refused.
QUEUE_LIMIT = 20_000
# PostgreSQL is asked again this often while it is down.
PROBE_INTERVAL_S = 0.5
_DOWN = (OperationalError, InterfaceError)


@dataclass(slots=True)
class _Waiting(Generic[Row, Answer]):
    row: Row
    # Where it lies in the outbox; None when that was full.
    segment: Segment | None
    future: asyncio.Future[Answer]


class GroupWriter(Generic[Row, Answer]):
    """A thread that writes whatever has queued, as one batch, and then what queued meanwhile."""

    def __init__(self, name: str, write: Callable[[list[_Waiting[Row, Answer]]], None]) -> None:
        self._write = write
        self._queue: deque[_Waiting[Row, Answer]] = deque()
        self._ready = threading.Condition()
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, row: Row, segment: Segment | None) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        with self._ready:
            self._queue.append(_Waiting(row, segment, future))
            self._ready.notify()
        return future

    def __len__(self) -> int:
        return len(self._queue)

    def close(self) -> None:
        """Write what has queued, then end the thread. Blocks."""
        with self._ready:
            self._is_closing = True
            self._ready.notify()
        self._thread.join()

    def answer(self, waiting: Sequence[_Waiting[Row, Answer]], result: Callable[[Row], Answer] | Exception) -> None:
        """Resolve the callers' futures, all in one turn of their loop. Called from the thread."""

        def resolve() -> None:
            for entry in waiting:
                if entry.future.done():
                    continue
                if isinstance(result, Exception):
                    entry.future.set_exception(result)
                    entry.future.exception()  # a caller that left does not look
                else:
                    entry.future.set_result(result(entry.row))

        self._loop.call_soon_threadsafe(resolve)

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._is_closing:
                    self._ready.wait()
                if not self._queue:
                    break
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_LIMIT))]
            try:
                self._write(batch)
            except Exception as error:  # the thread's edge: the callers get it, and the next batch its chance
                logger.exception("batch_failed rows=%s", len(batch))
                self.answer(batch, error)
        connection.close()


class Metering:
    def __init__(self, folder: Path, gateway_id: str = GATEWAY_ID) -> None:
        self._outbox = Outbox(folder, gateway_id)
        # Calls whose opening row was postponed: the row that finishes one must not overtake it.
        self._unopened: set[UUID] = set()
        self._serves_unmetered: bool = settings.UNMETERED_CALLS == "serve"
        self._is_down = threading.Event()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._opens: GroupWriter[OpenRecord, None] = GroupWriter("usage-open", self._write_opens)
        self._finishes: GroupWriter[FinishedRecord, int | None] = GroupWriter("usage-finish", self._write_finishes)
        self._deliverer = threading.Thread(target=self._deliver, name="usage-outbox", daemon=True)
        self._deliverer.start()

    @property
    def is_down(self) -> bool:
        """PostgreSQL was away when last asked."""
        return self._is_down.is_set()

    def refuse_when_down(self) -> None:
        """Raises ApiError while PostgreSQL is known to be away: a call that cannot be recorded is not started."""
        is_refused = self._is_down.is_set() and not self._serves_unmetered
        if is_refused or len(self._opens) > QUEUE_LIMIT or self._outbox.is_full:
            raise _refusal()

    def open(self, row: OpenRecord) -> asyncio.Future[None]:
        """On return the row survives this process. The future ends when it has committed; with ApiError when it could
        not be written. Raises ApiError when not even the outbox takes it."""
        try:
            segment = self._outbox.append(row)
        except OutboxFull as error:
            logger.error("usage_open_not_kept request_id=%s error=%s", row.request_id, error)
            raise _refusal() from None
        return self._opens.put(row, segment)

    def finish(self, row: FinishedRecord) -> asyncio.Future[int | None]:
        """The future ends when the row is durable: the cost, or None when it waits in the outbox or has no record."""
        try:
            segment = self._outbox.append(row)
        except OutboxFull:
            segment = None  # PostgreSQL may take it
        return self._finishes.put(row, segment)

    def close(self) -> None:
        """Blocks until all that was given is durable."""
        self._opens.close()
        self._finishes.close()
        self._closing.set()
        self._wake.set()
        self._deliverer.join()
        self._outbox.close()

    # The opening thread ---------------------------------------------------------------------------

    def _write_opens(self, batch: list[_Waiting[OpenRecord, None]]) -> None:
        if self._serves_unmetered and self._is_down.is_set():
            self._postpone_opens(batch)
            return
        for is_last in (False, True):
            try:
                open_records([entry.row for entry in batch])
            except _DOWN as error:
                # The commit may have happened: a repeat is harmless, and a call refused here is finished as failed.
                connection.close()
                if is_last:
                    logger.warning("usage_open_failed rows=%s error=%s", len(batch), type(error).__name__)
                    self._note_down()
                    self._postpone_opens(batch)
            except (BillingError, Error) as error:
                self._open_singly(batch, error)
                return
            else:
                self._outbox.taken(entry.segment for entry in batch)
                self._opens.answer(batch, lambda _: None)
                return

    def _postpone_opens(self, batch: list[_Waiting[OpenRecord, None]]) -> None:
        """Refused or not, an engine may have begun on them: their rows come to PostgreSQL when it is back."""
        self._unopened.update(entry.row.request_id for entry in batch)
        self._outbox.postpone(entry.segment for entry in batch)
        self._wake.set()
        self._opens.answer(batch, (lambda _: None) if self._serves_unmetered else _refusal())

    def _open_singly(self, batch: list[_Waiting[OpenRecord, None]], error: Exception) -> None:
        """One bad row fails a batch; the others must not suffer."""
        if len(batch) > 1:
            for entry in batch:
                self._write_opens([entry])
            return
        logger.error("usage_open_refused request_id=%s error=%s", batch[0].row.request_id, error)
        self._outbox.taken([batch[0].segment])
        self._opens.answer(batch, ApiError("server_error", "The usage record of this call could not be opened."))

    # The finishing thread -------------------------------------------------------------------------

    def _write_finishes(self, batch: list[_Waiting[FinishedRecord, int | None]]) -> None:
        waiting = [entry for entry in batch if self._is_down.is_set() or entry.row.request_id in self._unopened]
        direct = [entry for entry in batch if entry not in waiting] if waiting else batch
        if direct:
            try:
                costs = self._finish([entry.row for entry in direct])
            except _DOWN as error:
                connection.close()
                logger.warning("usage_finish_postponed rows=%s error=%s", len(batch), type(error).__name__)
                self._note_down()
                waiting = batch
            else:
                self._outbox.taken(entry.segment for entry in direct)
                self._finishes.answer(direct, lambda row: costs.get(row.request_id))
        if waiting:
            self._postpone_finishes(waiting)

    def _postpone_finishes(self, batch: list[_Waiting[FinishedRecord, int | None]]) -> None:
        if lost := sum(1 for entry in batch if entry.segment is None):
            # Reconciliation finishes these from the engine's receipts.
            logger.error("usage_finish_lost rows=%s", lost)
        self._outbox.postpone(entry.segment for entry in batch)
        self._wake.set()
        self._finishes.answer(batch, lambda _: None)

    def _finish(self, rows: list[FinishedRecord]) -> dict[UUID, int]:
        """Raises when PostgreSQL is down; a row that it refuses is logged and left to reconciliation."""
        try:
            return finish_records(rows)
        except _DOWN:
            raise
        except (BillingError, Error, ValueError) as error:
            if len(rows) == 1:
                logger.error("usage_finish_refused request_id=%s error=%s", rows[0].request_id, error)
                return {}
        costs: dict[UUID, int] = {}
        for row in rows:
            costs |= self._finish([row])
        return costs

    def _write_postponed(self, rows: list[OpenRecord | FinishedRecord]) -> None:
        opened = [row for row in rows if isinstance(row, OpenRecord)]
        try:
            open_records(opened)
        except _DOWN:
            raise
        except (BillingError, Error):
            self._open_postponed_singly(opened)
        self._unopened.difference_update(row.request_id for row in opened)
        self._finish([row for row in rows if isinstance(row, FinishedRecord)])

    def _open_postponed_singly(self, rows: list[OpenRecord]) -> None:
        for row in rows:
            try:
                open_records([row])
            except _DOWN:
                raise
            except (BillingError, Error) as error:
                logger.error("usage_open_refused request_id=%s error=%s", row.request_id, error)

    # The delivering thread ------------------------------------------------------------------------

    def _note_down(self) -> None:
        self._is_down.set()
        self._wake.set()

    def _deliver(self) -> None:
        """While PostgreSQL is down, probe it; then deliver the outbox, oldest first."""
        self._wake.set()  # what an earlier process left
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._closing.is_set() and (self._is_down.is_set() or self._outbox.is_due):
                try:
                    connection.ensure_connection()
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT 1")
                    self._is_down.clear()
                    self._outbox.deliver(self._write_postponed, note_gateway_end)
                except _DOWN:
                    connection.close()
                    self._closing.wait(PROBE_INTERVAL_S)
            close_old_connections()
        connection.close()


def _refusal() -> ApiError:
    return ApiError("store_unavailable", "The service cannot record usage right now; try again.")

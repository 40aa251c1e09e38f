"""Rows on their way to PostgreSQL, on disk before anything else happens to them.

Every row is appended as it is made, so that a killed process takes none with it; what PostgreSQL has committed is
forgotten. What it could not take is synced, and delivered in order once it is back. The files of a process are locked
while it lives: a starting process takes over the unlocked ones, and so learns which gateways have ended.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from errno import ENOSPC
from io import FileIO
from itertools import groupby
from pathlib import Path
from uuid import uuid4

import msgspec

from billing.usage.services import FinishedRecord, OpenRecord

logger = logging.getLogger(__name__)

# Of all files together; past it nothing is taken any more.
SIZE_LIMIT_BYTES = 64 * 1024 * 1024
# Past it a file is left to drain, and the next one begun.
SEGMENT_BYTES = 1024 * 1024
BATCH_ROWS = 500

_ENCODER = msgspec.json.Encoder()
_FINISHED = msgspec.json.Decoder(FinishedRecord)
_OPENED = msgspec.json.Decoder(OpenRecord)
# An opening row's line begins so; no JSON value does.
_OPENING = b"+"
Row = OpenRecord | FinishedRecord


class OutboxFull(Exception):
    pass


@dataclass(slots=True, eq=False)
class Segment:
    """One locked file. `waiting` of its rows are not yet in PostgreSQL."""

    path: Path
    file: FileIO
    size: int = 0
    waiting: int = 0

    @property
    def owner(self) -> str:
        """The gateway that wrote it; see `Outbox._begin` for the name's form."""
        return self.path.name.rsplit(".", 3)[0]

    def write(self, line: bytes) -> None:
        """All of it or nothing. Raises OSError."""
        if self.file.write(line) != len(line):
            os.ftruncate(self.file.fileno(), self.size)
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        self.size += len(line)
        self.waiting += 1

    def rows(self) -> Iterator[list[Row]]:
        """In the order in which they were written, in batches. Nothing where the file has drained meanwhile."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            batch: list[Row] = []
            for line in file:
                try:
                    batch.append(_row(line))
                except msgspec.DecodeError:
                    # The process died inside the append: nothing has happened yet with what this row tells.
                    logger.error("outbox_line_torn path=%s bytes=%s", self.path.name, len(line))
                    continue
                if len(batch) == BATCH_ROWS:
                    yield batch
                    batch = []
            if batch:
                yield batch


class Outbox:
    """The event loop appends, the writing threads say what PostgreSQL took, and one more thread delivers the rest."""

    def __init__(self, folder: Path, owner: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._owner = owner
        self._name = f"{owner}.{uuid4().hex[:8]}"
        self._count = 0
        # Counts and lists; never held for long, since the event loop takes it.
        self._lock = threading.Lock()
        # Held while files are synced or closed.
        self._files = threading.Lock()
        self._inherited = list(self._take_over())
        self._draining: list[Segment] = []  # oldest first
        self._size = 0
        self._is_due = False
        self._current = self._begin()

    @property
    def is_due(self) -> bool:
        """There is something to deliver: rows of ours that were postponed, or files of a process that has ended."""
        return self._is_due or bool(self._inherited)

    @property
    def is_full(self) -> bool:
        return self._size > SIZE_LIMIT_BYTES

    def append(self, row: Row) -> Segment:
        """On return the row survives this process. Raises OutboxFull past the limit or when the disk refuses."""
        line = _line(row)
        with self._lock:
            if self.is_full:
                raise OutboxFull(f"{self._folder} holds {self._size} bytes; the limit is {SIZE_LIMIT_BYTES}.")
            try:
                if self._current.size > SEGMENT_BYTES:
                    self._rotate()
                self._current.write(line)
            except OSError as error:
                raise OutboxFull(f"{self._current.path} cannot be written: {error.strerror}.") from error
            self._size += len(line)
            return self._current

    def taken(self, segments: Iterable[Segment | None]) -> None:
        """PostgreSQL has, or has refused for good, one row of each."""
        with self._lock:
            for segment in segments:
                if segment is not None:
                    segment.waiting -= 1
            drained = [segment for segment in self._draining if not segment.waiting]
            for segment in drained:
                self._forget(segment)
        for segment in drained:
            self._remove(segment)

    def postpone(self, segments: Iterable[Segment | None]) -> None:
        """Rows of these wait for a delivery. On return they are on disk, whatever happens to the machine."""
        with self._files:
            for segment in {segment for segment in segments if segment is not None and not segment.file.closed}:
                try:
                    os.fsync(segment.file.fileno())
                except OSError as error:
                    logger.error("outbox_not_synced path=%s error=%s", segment.path.name, error.strerror)
        self._is_due = True

    def deliver(self, write: Callable[[list[Row]], object], note_end: Callable[[str], object]) -> None:
        """Hand all rows to `write`, and forget a file once that has returned. What it raises leaves the rest.

        Rows that are in PostgreSQL already come again: `write` must not mind. `note_end` is told of each gateway that
        has ended, after its rows.
        """
        try:
            self._deliver_inherited(write, note_end)
            with self._lock:
                self._is_due = False
                if self._current.size:
                    self._rotate()
                segments = list(self._draining)
            for segment in segments:
                for batch in segment.rows():
                    write(batch)
                with self._lock:
                    is_here = segment in self._draining
                    if is_here:
                        self._forget(segment)
                if is_here:
                    self._remove(segment)
        except BaseException:
            self._is_due = True
            raise

    def close(self) -> None:
        """What has not drained stays for the next process."""
        with self._lock:
            if self._current.waiting == 0:
                self._current.path.unlink()
            for segment in (self._current, *self._draining, *self._inherited):
                segment.file.close()

    def _deliver_inherited(self, write: Callable[[list[Row]], object], note_end: Callable[[str], object]) -> None:
        for owner, group in groupby(list(self._inherited), lambda segment: segment.owner):
            segments = list(group)
            for segment in segments:
                for batch in segment.rows():
                    write(batch)
            if owner != self._owner:
                note_end(owner)
            for segment in segments:
                self._remove(segment)
                self._inherited.remove(segment)

    # Files; the lists under the lock --------------------------------------------------------------

    def _begin(self) -> Segment:
        """Locked before it has a name that others look for."""
        self._count += 1
        path = self._folder / f"{self._name}.{self._count:08}.jsonl"
        hidden = path.with_suffix(".new")
        file = hidden.open("ab", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.rename(path)
        return Segment(path, file)

    def _rotate(self) -> None:
        begun = self._begin()
        self._draining.append(self._current)
        self._current = begun

    def _forget(self, segment: Segment) -> None:
        self._draining.remove(segment)
        self._size -= segment.size

    def _remove(self, segment: Segment) -> None:
        with self._files:
            segment.path.unlink(missing_ok=True)
            segment.file.close()

    def _take_over(self) -> Iterator[Segment]:
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                file = path.open("ab", buffering=0)
            except OSError as error:
                logger.error("outbox_unreadable path=%s error=%s", path.name, error.strerror)
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()  # its process lives
                continue
            # Another process may have delivered and removed it between the open and the lock.
            if path.exists() and os.fstat(file.fileno()).st_nlink:
                yield Segment(path, file)
            else:
                file.close()


def _line(row: Row) -> bytes:
    return (_OPENING if isinstance(row, OpenRecord) else b"") + _ENCODER.encode(row) + b"\n"


def _row(line: bytes) -> Row:
    return _OPENED.decode(line[1:]) if line.startswith(_OPENING) else _FINISHED.decode(line)

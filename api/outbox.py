"""Rows that PostgreSQL could not take, kept on disk: appended with fsync, delivered in order, then removed.

Each process has files of its own, locked while it lives. A starting process takes over the unlocked files of dead ones.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import msgspec

from billing.usage.services import FinishedRecord, OpenRecord

logger = logging.getLogger(__name__)

SIZE_LIMIT_BYTES = 64 * 1024 * 1024
BATCH_ROWS = 500

_ENCODER = msgspec.json.Encoder()
_FINISHED = msgspec.json.Decoder(FinishedRecord)
_OPENED = msgspec.json.Decoder(OpenRecord)
# An opening row's line begins so; no JSON value does.
_OPENING = b"+"
Row = OpenRecord | FinishedRecord


class OutboxFull(Exception):
    pass


class Outbox:
    """One thread appends and another delivers: a delivery begins with a new file, so neither waits for the other."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        self._full = self._take_over()  # to be delivered, oldest first
        self._open_file()

    def _open_file(self) -> None:
        self._file = (self._folder / f"{uuid4().hex}.jsonl").open("a+b")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0

    @property
    def is_empty(self) -> bool:
        return self._size == 0 and not self._full

    @property
    def is_full(self) -> bool:
        return self._size > SIZE_LIMIT_BYTES

    def append(self, rows: Sequence[Row]) -> None:
        """On return the rows are on disk. Raises OutboxFull past the limit or when the disk refuses."""
        data = b"".join(map(_line, rows))
        with self._lock:
            if self.is_full:
                raise OutboxFull(f"{self._file.name} holds {self._size} bytes; the limit is {SIZE_LIMIT_BYTES}.")
            try:
                self._file.write(data)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise OutboxFull(f"{self._file.name} cannot be written: {error.strerror}.") from error
            self._size += len(data)

    def deliver(self, write: Callable[[list[Row]], object]) -> None:
        """Hand all rows to `write`, and forget a file once that has returned. What it raises leaves the rest."""
        with self._lock:
            if self._size:
                self._full.append(self._file)
                self._open_file()
        while self._full:
            file = self._full[0]
            _deliver_file(file, write)
            os.unlink(file.name)
            file.close()
            self._full.pop(0)

    def close(self) -> None:
        with self._lock:
            if self._size == 0:
                os.unlink(self._file.name)
            for file in (self._file, *self._full):
                file.close()

    def _take_over(self) -> list[BinaryIO]:
        taken: list[BinaryIO] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                file = path.open("a+b")
            except OSError as error:
                logger.error("outbox_unreadable path=%s error=%s", path.name, error.strerror)
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()  # its process lives
                continue
            # Another process may have delivered and removed it between the open and the lock.
            if path.exists():
                taken.append(file)
            else:
                file.close()
        return taken


def _line(row: Row) -> bytes:
    return (_OPENING if isinstance(row, OpenRecord) else b"") + _ENCODER.encode(row) + b"\n"


def _row(line: bytes) -> Row:
    return _OPENED.decode(line[1:]) if line.startswith(_OPENING) else _FINISHED.decode(line)


def _deliver_file(file: BinaryIO, write: Callable[[list[Row]], object]) -> None:
    file.seek(0)
    rows: list[Row] = []
    for line in file:
        try:
            rows.append(_row(line))
        except msgspec.DecodeError:
            # The process died inside the append: nobody was told that this row is durable.
            logger.error("outbox_line_torn path=%s bytes=%s", Path(file.name).name, len(line))
            continue
        if len(rows) == BATCH_ROWS:
            write(rows)
            rows = []
    if rows:
        write(rows)

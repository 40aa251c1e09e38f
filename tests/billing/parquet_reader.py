"""Reads the Parquet that we write, from the format's own description and not from our writer."""

from __future__ import annotations

import gzip
import struct
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

BOOLEAN, INT64, BYTE_ARRAY, FIXED = 0, 2, 6, 7
DECIMAL, TIMESTAMP = 5, 10
EXACT = Context(prec=60)


class Thrift:
    """The compact protocol: a struct becomes a dict by field id."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def integer(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 8:
            size = self.varint()
            self.at += size
            return self.data[self.at - size : self.at]
        if kind == 9:
            head = self.data[self.at]
            self.at += 1
            size = head >> 4 if head >> 4 != 15 else self.varint()
            return [self.value(head & 15) for _ in range(size)]
        assert kind == 12, kind
        return self.struct()

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        identifier = 0
        while head := self.data[self.at]:
            self.at += 1
            identifier += head >> 4
            fields[identifier] = self.value(head & 15)
        self.at += 1
        return fields


def read(data: bytes) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows by column name, and the key-value metadata."""
    assert data[:4] == data[-4:] == b"PAR1"
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = Thrift(data[-8 - size : -8]).struct()
    schema = footer[2][1:]
    assert len(schema) == footer[2][0][5]
    rows: list[dict[str, Any]] = []
    for group in footer[4]:
        columns = [_column(data, chunk, element) for chunk, element in zip(group[1], schema, strict=True)]
        names = [element[4].decode() for element in schema]
        found = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        assert len(found) == group[3]
        rows += found
    assert len(rows) == footer[3]
    return rows, {note[1].decode(): note[2].decode() for note in footer.get(5, [])}


def _column(data: bytes, chunk: dict[int, Any], element: dict[int, Any]) -> list[Any]:
    meta = chunk[3]
    reader = Thrift(data, meta[9])
    head = reader.struct()
    page = gzip.decompress(data[reader.at : reader.at + head[3]])
    assert len(page) == head[2]
    count = head[5][1]
    size = struct.unpack("<I", page[:4])[0]
    levels = _levels(page[4 : 4 + size], count)
    present = iter(_plain(page[4 + size :], sum(levels), element))
    return [next(present) if level else None for level in levels]


def _levels(data: bytes, count: int) -> list[int]:
    reader, levels = Thrift(data), []
    while reader.at < len(data):
        run = reader.varint()
        assert run & 1 == 0, "only runs are written"
        levels += [data[reader.at]] * (run >> 1)
        reader.at += 1
    assert len(levels) == count
    return levels


def _plain(data: bytes, count: int, element: dict[int, Any]) -> list[Any]:
    physical, logical = element[1], element.get(6)
    if physical == BOOLEAN:
        return [bool(data[place // 8] >> place % 8 & 1) for place in range(count)]
    if physical == INT64:
        numbers = struct.unpack(f"<{count}q", data)
        if logical == TIMESTAMP:
            return [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number) for number in numbers]
        return list(numbers)
    if physical == FIXED:
        width = element[2]
        assert logical == DECIMAL
        parts = [data[start : start + width] for start in range(0, count * width, width)]
        return [EXACT.scaleb(Decimal(int.from_bytes(part, "big", signed=True)), -element[7]) for part in parts]
    texts, at = [], 0
    for _ in range(count):
        size = struct.unpack("<I", data[at : at + 4])[0]
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts

"""Parquet, the part of it that a table of plain values needs: optional columns, plain encoding, gzip.

The format is published at parquet.apache.org; docs/adr/0113 says why it is written here.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Inexact
from typing import BinaryIO

from billing.exports.table import Column, Row, Value

_MAGIC = b"PAR1"
_ROWS_PER_GROUP = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRECISION, _DECIMAL_BYTES = 38, 16
# The usual context would round silently past 28 digits.
_EXACT = Context(prec=2 * _PRECISION, traps=[Inexact])

# Thrift's compact types, and Parquet's own numbers.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_BOOLEAN, _INT64, _BYTE_ARRAY, _FIXED = 0, 2, 6, 7
_UTF8, _DECIMAL, _TIMESTAMP_MICROS = 0, 5, 10
_OPTIONAL, _PLAIN, _RLE, _GZIP, _DATA_PAGE = 1, 0, 3, 2, 0

Field = tuple[int, int, object]  # id, compact type, value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _encode(kind: int, value: object) -> bytes:
    if kind in (_I32, _I64):
        assert isinstance(value, int)
        return _zigzag(value)
    if kind == _BINARY:
        assert isinstance(value, str)
        raw = value.encode()
        return _varint(len(raw)) + raw
    if kind == _STRUCT:
        assert isinstance(value, list)
        return _struct(value)
    assert isinstance(value, tuple)
    element, items = value
    head = bytes([len(items) << 4 | element]) if len(items) < 15 else bytes([0xF0 | element]) + _varint(len(items))
    return head + b"".join(_encode(element, item) for item in items)


def _struct(fields: Iterable[Field]) -> bytes:
    out, last = bytearray(), 0
    for identifier, kind, value in fields:
        # All our ids are less than 16 apart, so that the short form of a field head is enough.
        out.append((identifier - last) << 4 | kind)
        out += _encode(kind, value)
        last = identifier
    return bytes(out) + b"\x00"


class ParquetWriter:
    """One row group for each 20 000 rows, so that memory stays flat. `notes` become the file's key-value metadata."""

    def __init__(self, stream: BinaryIO, columns: Sequence[Column], notes: Mapping[str, str] | None = None) -> None:
        self._stream, self._columns, self._notes = stream, columns, dict(notes or {})
        self._rows: list[Row] = []
        self._groups: list[list[Field]] = []
        self._count = self._offset = 0
        self._put(_MAGIC)

    def write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._rows.append(row)
            if len(self._rows) >= _ROWS_PER_GROUP:
                self._write_group()

    def close(self) -> None:
        if self._rows:
            self._write_group()
        footer = _struct(self._file_fields())
        self._put(footer + struct.pack("<I", len(footer)) + _MAGIC)
        self._stream.flush()

    def _put(self, data: bytes) -> None:
        self._stream.write(data)
        self._offset += len(data)

    def _write_group(self) -> None:
        chunks, size = [], 0
        for position, column in enumerate(self._columns):
            chunk, uncompressed = self._write_column(column, [row[position] for row in self._rows])
            chunks.append(chunk)
            size += uncompressed
        self._groups.append([(1, _LIST, (_STRUCT, chunks)), (2, _I64, size), (3, _I64, len(self._rows))])
        self._count += len(self._rows)
        self._rows = []

    def _write_column(self, column: Column, values: list[Value]) -> tuple[list[Field], int]:
        """One page: which values are there, then these. Returns the chunk's description and its size."""
        page = _definition_levels(values) + _plain(column, [value for value in values if value is not None])
        packed = gzip.compress(page, compresslevel=6, mtime=0)
        levels: list[Field] = [(1, _I32, len(values)), (2, _I32, _PLAIN), (3, _I32, _RLE), (4, _I32, _RLE)]
        head = _struct([(1, _I32, _DATA_PAGE), (2, _I32, len(page)), (3, _I32, len(packed)), (5, _STRUCT, levels)])
        start = self._offset
        self._put(head + packed)
        uncompressed = len(head) + len(page)
        meta: list[Field] = [
            (1, _I32, _physical(column)),
            (2, _LIST, (_I32, [_PLAIN, _RLE])),
            (3, _LIST, (_BINARY, [column.name])),
            (4, _I32, _GZIP),
            (5, _I64, len(values)),
            (6, _I64, uncompressed),
            (7, _I64, len(head) + len(packed)),
            (9, _I64, start),
        ]
        return [(2, _I64, start), (3, _STRUCT, meta)], uncompressed

    def _file_fields(self) -> list[Field]:
        root: list[Field] = [(4, _BINARY, "schema"), (5, _I32, len(self._columns))]
        schema = [root, *(_schema_element(column) for column in self._columns)]
        fields: list[Field] = [
            (1, _I32, 1),
            (2, _LIST, (_STRUCT, schema)),
            (3, _I64, self._count),
            (4, _LIST, (_STRUCT, self._groups)),
        ]
        if self._notes:
            notes = [[(1, _BINARY, key), (2, _BINARY, value)] for key, value in self._notes.items()]
            fields.append((5, _LIST, (_STRUCT, notes)))
        return [*fields, (6, _BINARY, "tokenfactory")]


def _physical(column: Column) -> int:
    physical = {"text": _BYTE_ARRAY, "integer": _INT64, "decimal": _FIXED, "moment": _INT64, "boolean": _BOOLEAN}
    return physical[column.kind]


def _schema_element(column: Column) -> list[Field]:
    fields: list[Field] = [(1, _I32, _physical(column))]
    if column.kind == "decimal":
        fields.append((2, _I32, _DECIMAL_BYTES))
    fields += [(3, _I32, _OPTIONAL), (4, _BINARY, column.name)]
    if column.kind == "decimal":
        fields += [(6, _I32, _DECIMAL), (7, _I32, column.scale), (8, _I32, _PRECISION)]
    elif column.kind in ("text", "moment"):
        fields.append((6, _I32, _UTF8 if column.kind == "text" else _TIMESTAMP_MICROS))
    return fields


def _definition_levels(values: list[Value]) -> bytes:
    """1 for a value, 0 for none, as runs."""
    out, position = bytearray(), 0
    while position < len(values):
        is_there, end = values[position] is not None, position
        while end < len(values) and (values[end] is not None) == is_there:
            end += 1
        out += _varint((end - position) << 1) + bytes([is_there])
        position = end
    return struct.pack("<I", len(out)) + bytes(out)


def _plain(column: Column, values: list[Value]) -> bytes:
    if column.kind == "text":
        raw = [str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(part)) + part for part in raw)
    if column.kind == "boolean":
        bits = bytearray((len(values) + 7) // 8)
        for position, value in enumerate(values):
            bits[position // 8] |= bool(value) << position % 8
        return bytes(bits)
    if column.kind == "decimal":
        return b"".join(_unscaled(value, column) for value in values)
    whole = [_micros(value) if isinstance(value, datetime) else value for value in values]
    return struct.pack(f"<{len(whole)}q", *whole)


def _unscaled(value: Value, column: Column) -> bytes:
    assert isinstance(value, Decimal | int)
    number = _EXACT.scaleb(Decimal(value), column.scale)
    if number != number.to_integral_value():
        raise ValueError(f"{value} in column {column.name} has more than {column.scale} decimals.")
    return int(number).to_bytes(_DECIMAL_BYTES, "big", signed=True)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)

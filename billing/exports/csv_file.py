"""CSV: UTF-8, a head, RFC 4180 line ends, UTC moments, decimals without exponent."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import BinaryIO

from billing.exports.table import Column, Row, Value

# A cell that begins so is a formula to a spreadsheet.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class CsvWriter:
    def __init__(self, stream: BinaryIO, columns: Sequence[Column]) -> None:
        self._text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text)
        self._writer.writerow([column.name for column in columns])

    def write(self, rows: Iterable[Row]) -> None:
        self._writer.writerows([_cell(value) for value in row] for row in rows)

    def close(self) -> None:
        self._text.flush()
        self._text.detach()


def _cell(value: Value) -> str | int:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value

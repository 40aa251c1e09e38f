"""What a file is made of: named, typed columns and rows of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, Protocol

Value = str | int | Decimal | datetime | bool | None
Row = Sequence[Value]


@dataclass(frozen=True)
class Column:
    """`scale` is the number of decimals that a decimal keeps."""

    name: str
    kind: Literal["text", "integer", "decimal", "moment", "boolean"] = "text"
    scale: int = 9


class Writer(Protocol):
    """Takes rows in the order of the columns; the file is whole after `close`."""

    def write(self, rows: Iterable[Row]) -> None: ...

    def close(self) -> None: ...

"""Files whose size does not matter to the server: a CSV file that is written while it is read, and one on the disk."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterator, Sequence
from io import StringIO
from itertools import islice
from typing import IO, TypeVar

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import FileResponse, HttpRequest, StreamingHttpResponse

CHUNK_ROWS = 500
CHUNK_BYTES = 256 * 1024
Chunk = TypeVar("Chunk", str, bytes)
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _safe(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return f"'{text}" if text.startswith(_FORMULA) and isinstance(cell, str) else text


def _chunks(header: Sequence[str], rows: Iterator[Sequence[object]]) -> Iterator[str]:
    yield _written([header])
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield _written([[_safe(cell) for cell in row] for row in chunk])


def _written(rows: Sequence[Sequence[object]]) -> str:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


async def _pulled(chunks: Iterator[Chunk]) -> AsyncIterator[Chunk]:
    """Each chunk is made in the request's own thread, where its database connection is."""
    pull = sync_to_async(lambda: next(chunks, None))
    while (chunk := await pull()) is not None:
        yield chunk


def _streamed(request: HttpRequest, chunks: Iterator[Chunk]) -> Iterator[Chunk] | AsyncIterator[Chunk]:
    """On an ASGI server Django would read a plain iterator to its end before it sends anything."""
    return _pulled(chunks) if isinstance(request, ASGIRequest) else chunks


def csv_response(
    request: HttpRequest, *, name: str, header: Sequence[str], rows: Iterator[Sequence[object]]
) -> StreamingHttpResponse:
    return StreamingHttpResponse(
        _streamed(request, _chunks(header, rows)),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def file_response(request: HttpRequest, file: IO[bytes], *, name: str, content_type: str) -> FileResponse:
    """The open file as a download; it is closed with the response."""
    response = FileResponse(file, as_attachment=True, filename=name, content_type=content_type)
    response.streaming_content = _streamed(request, iter(lambda: file.read(CHUNK_BYTES), b""))
    return response

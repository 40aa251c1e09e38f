"""Pages come compressed and files whole, to browsers that take gzip, through the server's asynchronous side."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponseBase
from django.test import AsyncClient, AsyncRequestFactory
from django.urls import reverse

from portal.csv_stream import CHUNK_BYTES, file_response
from tests.factories.portal import Cast

GZIP = {"accept-encoding": "gzip"}


async def _body(answer: HttpResponseBase) -> bytes:
    return b"".join([chunk async for chunk in answer]) if answer.streaming else answer.content  # type: ignore[attr-defined]


async def _get(cast: Cast, path: str) -> tuple[HttpResponseBase, bytes]:
    browser = AsyncClient()
    await browser.aforce_login(cast.ada, backend="django.contrib.auth.backends.ModelBackend")
    answer = await browser.get(path, headers=GZIP)
    return answer, await _body(answer)


def test_a_csv_file_is_one_whole(cast: Cast) -> None:
    answer, body = async_to_sync(_get)(cast, reverse("portal:audit_export", args=[cast.organization.slug]))
    assert "Content-Encoding" not in answer.headers
    assert len(body.splitlines()) > 1, "the names of the columns alone"


def test_a_page_is_compressed(cast: Cast) -> None:
    answer, body = async_to_sync(_get)(cast, reverse("portal:audit", args=[cast.organization.slug]))
    assert answer.headers["Content-Encoding"] == "gzip"
    assert b"</html>" in gzip.decompress(body)


# A warning is an error here: Django warns of a file that it would read as a whole before it sends anything.
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1])
def test_a_file_is_read_as_it_is_sent(size: int, tmp_path: Path, db: None) -> None:
    path = tmp_path / "usage.csv"
    path.write_bytes(b"x" * size)
    request = AsyncRequestFactory().get("/")
    assert isinstance(request, ASGIRequest)
    file = path.open("rb")
    answer = file_response(request, file, name="usage.csv", content_type="text/csv")
    assert answer.is_async
    assert (answer.headers["Content-Length"], len(async_to_sync(_body)(answer))) == (str(size), size)
    answer.close()
    assert file.closed

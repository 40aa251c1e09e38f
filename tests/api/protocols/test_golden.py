"""The exact bytes of each dialect's streams, in tests/golden/sse; `make golden` rewrites them for review."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.api.protocols.scenarios import DIALECTS, SCENARIOS, stream_of, write_all, writer_of

FOLDER = Path(__file__).parents[2] / "golden" / "sse"
# Sealing draws a fresh nonce, so a sealed text has no fixed bytes.
SEALED = re.compile(rb'("encrypted_content":")[^"]+')


def compare(name: str, stream: bytes) -> None:
    stream = SEALED.sub(rb"\1sealed", stream)
    path = FOLDER / f"{name}.sse"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream)
    assert path.read_bytes() == stream


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_stream_is_the_golden_one(dialect: str, scenario: str) -> None:
    compare(f"{dialect}-{scenario}", stream_of(dialect, SCENARIOS[scenario]))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_broken_stream_is_the_golden_one(dialect: str) -> None:
    writer = writer_of(dialect, stream=True)
    stream = b"".join(write_all(writer, SCENARIOS["text"].events[:3]))
    compare(f"{dialect}-failed", stream + writer.fail("engine_unavailable", "The engine went away."))

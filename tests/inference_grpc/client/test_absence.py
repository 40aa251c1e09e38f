"""An engine that is away is logged when that changes, and ever more rarely in between."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from inference_grpc import absence


def test_lines_come_at_a_growing_distance(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    monkeypatch.setattr(absence.time, "monotonic", lambda: now)
    caplog.set_level(logging.INFO, logger="inference_grpc.absence")
    engine = absence.Absence("127.0.0.1:50051")
    engine.end()
    assert caplog.messages == [], "the first session is no return"
    lines: list[tuple[int, str]] = []
    for second in range(24 * 3600):
        now = 1000.0 + second
        engine.note("UNAVAILABLE")
        lines.extend((second, message.split()[0]) for message in caplog.messages)
        caplog.clear()
    assert lines[:5] == [
        (0, "engine_session_lost"),
        (60, "engine_still_away"),
        (180, "engine_still_away"),
        (420, "engine_still_away"),
        (900, "engine_still_away"),
    ]
    assert {after - before for (before, _), (after, _) in pairwise(lines[8:])} == {3600}
    engine.end()
    engine.end()
    assert caplog.messages == ["engine_session_back address=127.0.0.1:50051 away_s=86399.0"]
    caplog.clear()
    engine.note("EOF")
    assert [message.split()[0] for message in caplog.messages] == ["engine_session_lost"]

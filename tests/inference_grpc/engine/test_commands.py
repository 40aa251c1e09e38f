"""The measuring commands hold on a small scale what they are for on a large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine import drafting
from benchmarks.engine.long_prompt import TOLERANCE, run
from benchmarks.engine.scheduler import measure
from inference_grpc.model.tiny import write_tiny


def test_a_long_prompt_equals_the_reference_and_goes_on_from_a_kept_state() -> None:
    first, again, off = run(tokens=2501)
    assert (first.cached_tokens, again.cached_tokens) == (0, 2496)
    assert first.text == again.text
    assert off < TOLERANCE


@pytest.mark.parametrize("has_state", [False, True])
def test_bookkeeping_is_measured_where_it_balances(has_state: bool) -> None:
    costs = measure(64, 40, has_state=has_state)
    assert len(costs) == 40
    assert min(costs) > 0


def test_drafting_is_measured_where_texts_stay_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "ROUNDS", 1)
    monkeypatch.setattr(drafting, "DRAFT_TOKENS", (0, 2))
    plain, drafted = drafting.measure(write_tiny(tmp_path / "agreeing", depth=0.05), at_once=2, tokens=12)
    assert plain.texts == drafted.texts
    assert (plain.acceptance, plain.tokens_per_step) == (None, 1.0)
    assert drafted.tokens_per_step > 1
    assert 0 < (drafted.acceptance or 0) <= 1

"""The measuring commands hold on a small scale what they are for on a large one."""

from __future__ import annotations

from statistics import median

import pytest
import torch

from benchmarks.engine.long_prompt import run
from benchmarks.engine.scheduler import measure


def test_a_long_prompt_gives_the_same_bits_from_a_kept_state() -> None:
    whole, again, _ = run(tokens=2500, chunk=640)
    assert bool(whole.isfinite().all())
    assert torch.equal(whole, again)


@pytest.mark.parametrize("has_state", [False, True])
def test_bookkeeping_stays_within_its_time(has_state: bool) -> None:
    # 2 ms at 256 sequences is the promise; CPU time, with room for a slow machine.
    assert median(measure(64, 40, has_state=has_state)) < 2.0

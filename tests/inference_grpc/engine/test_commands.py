"""The measuring commands hold on a small scale what they are for on a large one."""

from __future__ import annotations

import pytest

from benchmarks.engine.long_prompt import TOLERANCE, run
from benchmarks.engine.scheduler import measure


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

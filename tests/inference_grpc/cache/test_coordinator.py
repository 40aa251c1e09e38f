"""No page is lost, doubled or shown to the wrong tenant, whatever sequences come, grow, finish and come back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.cache.stale import Footprint
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence

PAGE = 4


def make_sequence(token_ids: list[int], tenant: str = "ada") -> Sequence:
    return Sequence(
        key=0, choice=0, prompt_ids=token_ids, sampling=SamplingParams(), seed=0, max_tokens=1, tenant=tenant
    )


def compute(cache: CacheCoordinator, token_ids: list[int], tenant: str = "ada") -> Sequence:
    sequence = make_sequence(token_ids, tenant)
    assert cache.admit(sequence)
    cache.commit(sequence, len(token_ids))
    return sequence


def test_a_prefix_is_found_again_in_whole_pages_but_never_the_last_token() -> None:
    cache = CacheCoordinator(pages=10, page_tokens=PAGE)
    first = compute(cache, list(range(12)))
    for length, found in ((3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)):
        again = make_sequence([*range(12), 99][:length])
        assert cache.admit(again)
        assert (again.computed, again.cached_tokens) == (found, found)
        assert again.page_ids[: found // PAGE] == first.page_ids[: found // PAGE]
        cache.release(again)
    cache.release(first)
    cache.check_integrity([])


def test_a_prefix_of_another_tenant_is_not_found() -> None:
    cache = CacheCoordinator(pages=10, page_tokens=PAGE)
    compute(cache, list(range(12)), "ada")
    assert cache.longest_prefix(make_sequence(list(range(12)), "ben")) == []
    assert len(cache.longest_prefix(make_sequence(list(range(12)), "ada"))) == 2


def test_a_page_is_found_only_behind_the_same_beginning() -> None:
    cache = CacheCoordinator(pages=10, page_tokens=PAGE)
    compute(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert cache.longest_prefix(make_sequence([0, 2, 3, 4, 5, 6, 7, 8, 9], "ada")) == []


def test_pages_that_are_not_computed_are_not_found() -> None:
    cache = CacheCoordinator(pages=10, page_tokens=PAGE)
    sequence = make_sequence(list(range(12)))
    cache.admit(sequence)
    cache.commit(sequence, 7)
    assert len(cache.longest_prefix(make_sequence(list(range(12)), "ada"))) == 1


def test_the_longest_unused_end_of_a_text_is_taken_first() -> None:
    cache = CacheCoordinator(pages=4, page_tokens=PAGE)
    for start in (0, 100):
        cache.release(compute(cache, list(range(start, start + 8))))
    newcomer = make_sequence(list(range(200, 204)))
    assert cache.admit(newcomer)
    assert len(cache.longest_prefix(make_sequence([*range(8), 0], "ada"))) == 1
    assert len(cache.longest_prefix(make_sequence([*range(100, 108), 0], "ada"))) == 2


def test_admission_and_growth_that_do_not_fit_change_nothing() -> None:
    cache = CacheCoordinator(pages=4, page_tokens=PAGE)
    holder = compute(cache, list(range(8)))
    too_long = make_sequence([*range(8), *range(50, 62)])
    assert not cache.admit(too_long)
    assert not cache.admit(make_sequence([7] * 8), reserve=Footprint(1))
    assert not cache.extend(holder, 17)
    assert (holder.page_ids, too_long.page_ids, cache.pool.available) == (holder.page_ids, [], 2)
    assert cache.extend(holder, 16)
    cache.check_integrity([holder])


def test_after_a_fault_nothing_is_found() -> None:
    cache = CacheCoordinator(pages=8, page_tokens=PAGE)
    cache.release(compute(cache, list(range(8))))
    holder = compute(cache, list(range(20, 28)))
    cache.forget_prefixes()
    assert cache.longest_prefix(make_sequence(list(range(12)), "ada")) == []
    assert cache.longest_prefix(make_sequence([*range(20, 28), 0], "ada")) == []
    cache.release(holder)
    assert (cache.pool.free, cache.pool.cached) == (8, 0)
    cache.check_integrity([])


def test_a_miscounted_page_is_noticed() -> None:
    cache = CacheCoordinator(pages=8, page_tokens=PAGE)
    sequence = compute(cache, list(range(8)))
    with pytest.raises(AssertionError, match="block tables"):
        cache.check_integrity([])
    sequence.page_ids.append(sequence.page_ids[0])
    with pytest.raises(AssertionError, match="block tables"):
        cache.check_integrity([sequence])


class CacheMachine(RuleBasedStateMachine):
    """Few distinct tokens and pages, so that prefixes are shared and evicted all the time."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheCoordinator(pages=9, page_tokens=PAGE)
        self.live: list[Sequence] = []

    @rule(
        target=sequences,
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        tenant=st.sampled_from(["ada", "ben"]),
    )
    def submit(self, token_ids: list[int], tenant: str) -> Sequence:
        sequence = make_sequence(token_ids, tenant)
        if self.cache.admit(sequence):
            self.live.append(sequence)
        return sequence

    @rule(sequence=sequences, count=st.integers(1, 20))
    def run(self, sequence: Sequence, count: int) -> None:
        if sequence in self.live:
            self.cache.commit(sequence, min(sequence.computed + count, len(sequence.token_ids)))

    @rule(sequence=sequences, token_id=st.integers(0, 1))
    def grow(self, sequence: Sequence, token_id: int) -> None:
        if sequence in self.live and sequence.remaining == 0:
            sequence.append(token_id)
            if not self.cache.extend(sequence, len(sequence.token_ids)):
                self.cache.release(sequence)
                self.live.remove(sequence)

    @rule(sequence=sequences)
    def preempt_and_return(self, sequence: Sequence) -> None:
        if sequence in self.live:
            self.cache.release(sequence)
            if not self.cache.admit(sequence):
                self.live.remove(sequence)

    @rule(sequence=consumes(sequences))
    def finish(self, sequence: Sequence) -> None:
        self.cache.release(sequence)
        self.cache.release(sequence)
        if sequence in self.live:
            self.live.remove(sequence)

    @rule()
    def fault(self) -> None:
        self.cache.forget_prefixes()

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        self.cache.check_integrity(self.live)
        pool = self.cache.pool
        assert pool.free + pool.held + pool.cached == pool.total

    @invariant()
    def shared_pages_hold_the_same_text(self) -> None:
        """The pages of a sequence that are computed are shared only with sequences of the same tenant and beginning."""
        owners: dict[int, tuple[str, list[int]]] = {}
        for sequence in self.live:
            for number, page_id in enumerate(sequence.page_ids):
                end = (number + 1) * PAGE
                text = (sequence.tenant, sequence.token_ids[:end])
                if self.cache.pool.references(page_id) > 1:
                    assert owners.setdefault(page_id, text) == text


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

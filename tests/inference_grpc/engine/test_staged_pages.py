"""The allocator of a cache in two stages, with a model that knows which text each page holds and who may look where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.cache.stale import StalePages, held
from inference_grpc.core.batch import Batch
from inference_grpc.core.staged import NO_PAGE, StagedPages, split_pages
from kernels.paged_attention.stage import Staging
from tests.inference_grpc.engine.world import World

PAGE = 16


def staged(anchors: int = 1, recent: int = 2, three_bit: int = 40, step: int = 32, host: int = 0) -> StagedPages:
    return StagedPages(Staging(PAGE, anchors, recent), three_bit, step, host)


def world(pages: int = 40, step: int = 32, **rest: Any) -> World:
    two = rest.pop("staged", None) or staged(step=step)
    return World(pages=pages, prefill_tokens=step, page_tokens=PAGE, staged=two, **rest)


def demotions(batch: Batch) -> int:
    return sum(move.kind == "demotion" for move in batch.moves)


def balanced(world: World) -> bool:
    cache = world.cache
    return cache.pool.held == cache.stale.pool.held == cache.slots.held == cache.host.held == 0


@given(anchors=st.integers(0, 3), recent=st.integers(2, 5), position=st.integers(0, 400), page=st.integers(0, 25))
def test_the_boundary_is_the_rule_of_the_kernels(anchors: int, recent: int, position: int, page: int) -> None:
    two = staged(anchors, recent)
    stale = StalePages(two)
    is_stale = anchors <= page < stale.boundary(position // PAGE)
    assert is_stale == (not two.rule.is_fp8(position, page))
    assert is_stale == (page >= anchors and position // PAGE - page >= recent)


def test_a_long_text_holds_a_window_in_fp8_and_the_rest_in_three_bits() -> None:
    one = world(pages=8)
    sequence = one.add(list(range(400)), output=30)
    while not sequence.generated:
        one.step()
        assert len(held(sequence.page_ids)) <= one.cache.stale.staged.fp8_peak  # type: ignore[union-attr]
    rule = one.cache.stale.staged.rule  # type: ignore[union-attr]
    for _ in range(20):
        one.step()
        pages = range(len(sequence.page_ids))
        dropped = [page for page in pages if sequence.page_ids[page] == NO_PAGE]
        # No query from here on reads the FP8 copy, and none one page earlier would have.
        assert not any(rule.is_fp8(sequence.computed - PAGE, page) for page in dropped)
    assert len(held(sequence.page_ids)) <= one.cache.stale.staged.fp8_window + 1  # type: ignore[union-attr]
    assert len(held(sequence.three_bit_ids)) == rule.three_bit_pages(sequence.computed - 1)
    assert one.shadow.read_three_bit > 0
    one.run()
    assert balanced(one)


def test_an_anchor_never_leaves_fp8_and_is_never_demoted() -> None:
    one = world()
    sequence = one.add(list(range(200)), output=40)
    one.step()
    while sequence.remaining and one.scheduler.has_work:
        assert sequence.page_ids[0] != NO_PAGE
        assert not sequence.three_bit_ids or sequence.three_bit_ids[0] == NO_PAGE
        one.step()


def test_one_page_is_read_in_fp8_by_a_short_text_and_in_three_bits_by_a_long_one() -> None:
    """The shadow checks what every row reads; here is that both copies of one page are there at once."""
    one = world()
    long = one.add(list(range(160)), output=60)
    while not long.generated:
        one.step()
    short = one.add(list(range(40)), output=30)
    one.step()
    assert short.cached_tokens == 32
    assert short.page_ids[1] != NO_PAGE
    assert long.page_ids[1] == NO_PAGE
    assert long.three_bit_ids[1] != NO_PAGE
    before = long.three_bit_ids[1]
    one.run()
    assert before != NO_PAGE
    assert balanced(one)


def test_a_prefix_is_gone_on_from_only_where_its_recent_pages_are_still_in_fp8() -> None:
    one = world(pages=9)
    first = one.add(list(range(250)), output=2)
    one.run()
    # All of its pages are there in three bits, the last ones in FP8 too; what lay between has been taken again.
    again = one.add([*range(250), 7, 7, 9], output=2)
    one.step()
    assert first.cached_tokens == 0
    assert again.cached_tokens == 240
    assert len(held(again.three_bit_ids)) == 13  # found, not encoded again
    one.run()
    elsewhere = one.add([*range(130), *range(900, 940)], output=2)
    one.step()
    assert elsewhere.cached_tokens in (0, 16, 32)  # its recent pages would have to be in FP8
    one.run()
    assert balanced(one)


def test_a_page_that_is_found_in_three_bits_is_shared_and_not_encoded_twice() -> None:
    one = world(pages=60)
    one.add(list(range(200)), output=2)
    total = 0
    while one.scheduler.has_work:
        total += demotions(one.step())
    assert total == 10
    one.add(list(range(200)), output=2)
    again = 0
    while one.scheduler.has_work:
        again += demotions(one.step())
    assert again == 0


def test_choices_share_the_pages_of_their_prompt_in_both_stages() -> None:
    one = world(pages=60)
    leader = one.add(list(range(150)), output=40)
    follower = one.add(list(range(150)), output=40, leader=leader)
    while not leader.generated:
        one.step()
    assert follower.page_ids[:9] == leader.page_ids[:9]
    assert len(held(follower.page_ids[:9])) > 1
    assert follower.three_bit_ids == leader.three_bit_ids
    assert len(held(leader.three_bit_ids)) > 4
    one.run()
    assert balanced(one)


def test_a_choice_lets_go_of_what_only_its_prompt_read() -> None:
    """Else it would hold more in FP8 than the pool is made for, and not come back from host memory."""
    two = staged(anchors=0, host=40)
    one = world(pages=two.fp8_peak, staged=two, host_pages=40)
    leader = one.add(list(range(96)), output=30)
    follower = one.add(list(range(96)), output=30, leader=leader)
    while not leader.generated:
        one.step()
    assert len(held(follower.page_ids)) <= two.fp8_window
    one.run()
    assert balanced(one)


def test_what_does_not_fit_waits_until_both_pools_have_room() -> None:
    one = world(pages=40, staged=staged(three_bit=14))
    first, second = one.add(list(range(200)), output=20), one.add(list(range(500, 700)), output=20)
    one.step()
    assert (first in one.scheduler.running, second in one.scheduler.running) == (True, False)
    one.run()
    assert one.scheduler.preemptions == 0
    assert balanced(one)


def test_growth_beyond_the_second_pool_preempts_the_least_important() -> None:
    one = world(pages=40, staged=staged(three_bit=8, host=8), host_pages=8)
    for start in (0, 500):
        one.add(list(range(start, start + 60)), output=100)
    one.run()
    assert one.scheduler.preemptions == one.scheduler.swaps > 0
    assert len(one.finished) == 2
    assert balanced(one)


def test_what_went_to_host_memory_before_it_had_a_stale_page_comes_back_into_a_small_second_pool() -> None:
    """Anchors need no room there."""
    one = world(pages=40, staged=staged(anchors=4, recent=2, three_bit=2, host=40), host_pages=40)
    one.add(list(range(100)), output=28)  # comes to need both
    one.add(list(range(500, 580)), output=30)  # comes to need one while the other holds both
    one.run()
    assert one.scheduler.preemptions == one.scheduler.swaps == 1
    assert len(one.finished) == 2
    assert balanced(one)


@pytest.mark.parametrize("short_first", [True, False])
@pytest.mark.parametrize("scarce", ["three_bit", "fp8"])
def test_nothing_gives_way_for_drafts_that_reach_over_a_border(scarce: str, short_first: bool) -> None:
    """One page is left of one kind. A long text drafts into its fifth page, whose rows read the first one in three
    bits; the drafts are wrong, and a short text comes to its own fifth page and ends before the long one gets there."""
    two = staged(anchors=0, recent=4, three_bit=1 if scarce == "three_bit" else 20, step=160)
    one = world(pages=9 if scarce == "fp8" else 40, step=160, staged=two, draft_tokens=4, right=0.0)
    long, short = (list(range(60)), 8), (list(range(500, 563)), 3)
    for prompt, output in (short, long) if short_first else (long, short):
        one.add(prompt, output=output)
    one.run()
    assert (one.scheduler.preemptions, len(one.finished)) == (0, 2)
    assert one.drafted > 0
    assert balanced(one)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 170),
        st.integers(1, 40),
        st.integers(0, 2),
        st.booleans(),
        st.one_of(st.none(), st.integers(0, 30)),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(
    requests=REQUESTS,
    anchors=st.integers(0, 4),
    recent=st.integers(2, 3),
    extra=st.integers(0, 8),
    three_bit=st.integers(1, 30),
    step=st.sampled_from([16, 32, 50]),
    states=st.booleans(),
    host=st.sampled_from([0, 6, 40]),
    reserves_output=st.booleans(),
    drafts=st.sampled_from([0, 4]),
)
def test_whatever_comes_every_row_reads_what_the_rule_says_and_no_page_is_lost(
    requests: list[tuple[int, int, int, bool, int | None]],
    anchors: int,
    recent: int,
    extra: int,
    three_bit: int,
    step: int,
    states: bool,
    host: int,
    reserves_output: bool,
    drafts: int,
) -> None:
    two = staged(anchors, recent, three_bit, step=max(step, 32 if states else 1), host=host)
    one = world(
        pages=two.fp8_peak + extra,
        step=step,
        staged=two,
        max_sequences=3,
        state_slots=5 * (1 + drafts) if states else 0,
        block_tokens=32 if states else 1,
        host_pages=host,
        host_states=2 if host and states else 0,
        reserves_output=reserves_output,
        draft_tokens=drafts,
        right=0.6,
    )
    aborts: dict[int, int] = {}  # by arrival: the step before which it is taken out, wherever it is by then
    for number, (tokens, output, kind, forks, aborted) in enumerate(requests):
        longest = two.longest_pages(one.cache.pool.total) * PAGE
        tokens = min(tokens, longest - 1)
        output = min(output, longest - tokens)
        prompt = [kind, *range(tokens - 1)]  # few texts, of many lengths
        leader = one.add(prompt, output=output, tenant="ada" if number % 2 else "ben")
        if forks:
            one.add(prompt, output=output, tenant=leader.tenant, leader=leader)
        if aborted is not None:
            aborts[leader.arrival] = one.steps + aborted
        if number % 2:
            for _ in range(3):
                one.step(aborts)
    one.run(aborts=aborts)
    assert balanced(one)
    assert len(one.finished) + len(one.aborted) == len(requests) + sum(forks for _, _, _, forks, _ in requests)


def test_pools_are_split_so_that_sequences_may_share_them_in_any_way() -> None:
    rule = Staging(64, 4, 32)
    pages, three_bit = split_pages(4096, 8, rule, 512)
    assert (pages, three_bit) == (8 * 37 + 8, 4096 - 8 * 36)
    assert split_pages(100, 8, rule, 512)[1] < 1
    with pytest.raises(ValueError, match="at least 2"):
        StagedPages(Staging(64, 4, 1), 10, 512)

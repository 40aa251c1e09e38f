"""Who runs when: budgets, admission, preemption, fair shares. No model: each step is taken as run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.core.sequence import Sequence
from tests.inference_grpc.engine.world import World


def test_prompts_are_cut_to_the_budget_and_mixed_with_decoding() -> None:
    world = World(prefill_tokens=16)
    short, long = world.add(list(range(5)), output=9), world.add(list(range(100, 140)))
    assert [(c.sequence, c.count) for c in world.step().chunks] == [(short, 5), (long, 11)]
    assert [(c.sequence, c.count) for c in world.step().chunks] == [(short, 1), (long, 15)]
    assert long.generated == 0
    world.run()
    assert len(world.finished) == 2


def test_prefill_goes_on_when_decoding_fills_the_budget() -> None:
    world = World(max_sequences=8, prefill_tokens=4)
    for n in range(5):
        world.add([n], output=50)
    for _ in range(3):
        world.step()
    late = world.add(list(range(50, 70)))
    for _ in range(5):
        world.step()
    assert late.generated == 1


def test_no_more_than_the_limit_run_and_the_next_follows_at_once() -> None:
    world = World(max_sequences=2)
    first, second, third = (world.add([n], output=2 + n) for n in range(3))
    world.step()
    assert world.scheduler.running == [first, second]
    assert world.scheduler.waiting == 1
    world.step()
    assert world.finished == [first]
    world.step()
    assert third in world.scheduler.running or third in world.finished


def test_a_sequence_waits_until_there_are_pages_for_all_of_it_and_a_reserve() -> None:
    world = World(pages=6, prefill_tokens=64)
    first = world.add(list(range(12)), output=2)
    second = world.add(list(range(100, 112)), output=2)
    assert [chunk.sequence for chunk in world.step().chunks] == [first]
    world.run()
    assert world.finished == [first, second]
    assert world.scheduler.preemptions == 0


def test_the_latest_gives_way_when_pages_run_out_and_later_goes_on() -> None:
    world = World(pages=6, prefill_tokens=64)
    first, second = world.add([1, 2, 3], output=18), world.add([4, 5, 6], output=18)
    world.run()
    assert world.scheduler.preemptions > 0
    assert world.finished == [first, second]
    assert all(sequence.generated == 18 for sequence in world.finished)


def test_the_less_important_gives_way_first() -> None:
    world = World(pages=6, prefill_tokens=64)
    low = world.add([1, 2, 3], output=18, priority=0)
    world.step()
    high = world.add([4, 5, 6], output=18, priority=5)
    world.run()
    assert world.finished == [high, low]


def test_a_higher_priority_is_admitted_first() -> None:
    world = World(max_sequences=1)
    running = world.add([1], output=2)
    world.step()
    low, high = world.add([2], priority=-1), world.add([3], priority=1)
    world.run()
    assert world.finished == [running, high, low]


def test_a_tenant_with_many_requests_does_not_delay_another() -> None:
    world = World(max_sequences=1, prefill_tokens=64)
    for n in range(10):
        world.add([n] * 8, output=4, tenant="ada")
    world.step()
    world.add([50] * 8, output=4, tenant="ben")
    world.run()
    assert [sequence.tenant for sequence in world.finished].index("ben") <= 2


def test_shares_even_out_by_tokens_not_by_requests() -> None:
    world = World(max_sequences=1, prefill_tokens=64)
    for n in range(40):
        world.add([n] * 4, output=2, tenant="small")
        world.add([100 + n] * 40, output=2, tenant="large")
    while len(world.finished) < 30:
        world.step()
    served = {
        tenant: sum(len(s.token_ids) for s in world.finished if s.tenant == tenant) for tenant in ("small", "large")
    }
    assert 0.5 < served["small"] / served["large"] < 2.0


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    world = World(max_sequences=1, prefill_tokens=64)
    world.add([1], output=1, tenant="idler")
    world.run()
    for n in range(20):
        world.add([n] * 20, output=2, tenant="worker")
    for _ in range(20):
        world.step()
    for n in range(10):
        world.add([100 + n] * 20, output=2, tenant="idler")
    before = len(world.finished)
    while len(world.finished) < before + 10:
        world.step()
    latest = [sequence.tenant for sequence in world.finished[before:]]
    assert 3 <= latest.count("idler") <= 7


def test_further_choices_share_the_pages_of_the_prompt() -> None:
    world = World(prefill_tokens=8)
    prompt = list(range(18))
    leader = world.add(prompt)
    followers = [world.add(prompt, leader=leader) for _ in range(2)]
    while not leader.prompt_done:
        batch = world.step()
        assert [chunk.sequence for chunk in batch.chunks] == [leader]
    # All three draw their first token from the same row.
    assert batch.chunks[0].forks == tuple(followers)
    assert [follower.generated for follower in followers] == [1, 1]
    for follower in followers:
        assert follower.page_ids[:4] == leader.page_ids[:4]
        assert follower.cached_tokens == 18
        assert follower.page_ids[4] != leader.page_ids[4]  # partly filled, so each has its own
    world.run()


def test_followers_go_on_when_their_leader_is_gone() -> None:
    world = World()
    leader = world.add(list(range(50)))
    follower = world.add(list(range(50)), leader=leader)
    world.step()
    world.scheduler.remove(leader)
    world.run()
    assert world.finished == [follower]


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt tokens
        st.integers(1, 12),  # output
        st.sampled_from(["ada", "ben", "cyd"]),
        st.integers(0, 2),  # priority
        st.integers(0, 6),  # steps before the next
        st.booleans(),  # cancelled before the next
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS, pages=st.integers(11, 24), max_sequences=st.integers(1, 6), prefill_tokens=st.integers(1, 24))
def test_everything_ends_and_every_page_comes_back(
    requests: list[tuple[int, int, str, int, int, bool]], pages: int, max_sequences: int, prefill_tokens: int
) -> None:
    world = World(pages=pages, max_sequences=max_sequences, prefill_tokens=prefill_tokens)
    cancelled: list[Sequence] = []
    added: list[Sequence] = []
    for prompt, output, tenant, priority, steps, is_cancelled in requests:
        added.append(world.add([n % 3 for n in range(prompt)], output=output, tenant=tenant, priority=priority))
        for _ in range(steps):
            world.step()
        if is_cancelled and added[-1] not in world.finished:
            world.scheduler.remove(added[-1])
            cancelled.append(added[-1])
            world.cache.check_integrity(world.scheduler.sequences())
    world.run()
    assert {id(s) for s in world.finished} | {id(s) for s in cancelled} == {id(s) for s in added}
    assert all(sequence.generated == sequence.max_tokens for sequence in world.finished)
    assert world.cache.pool.held == 0


def test_a_prompt_met_before_goes_on_from_the_state_at_its_end() -> None:
    world = World(state_slots=6, block_tokens=8)
    prompt = list(range(21))
    first = world.add(prompt)
    world.run()
    again, longer = world.add(prompt), world.add([*prompt[:16], *range(50, 60)])
    other = world.add(prompt, tenant="ben")
    world.run()
    assert (first.cached_tokens, again.cached_tokens, longer.cached_tokens, other.cached_tokens) == (0, 16, 16, 0)


def test_a_shared_beginning_gets_its_state_when_it_is_met_the_second_time() -> None:
    world = World(state_slots=8, block_tokens=8)
    beginning = list(range(19))
    asked = [world.add([*beginning, *range(100 * n, 100 * n + 30)]) for n in range(1, 5)]
    for sequence in asked:
        world.run()
        world.scheduler.remove(sequence)
    late = world.add([*beginning, *range(900, 930)])
    world.run()
    assert late.cached_tokens == 16


def test_a_step_keeps_the_states_that_it_comes_past_without_a_cut() -> None:
    world = World(state_slots=8, block_tokens=8, prefill_tokens=64)
    beginning = list(range(16))
    for n in (100, 200):
        world.add([*beginning, *range(n, n + 16)])
        (chunk,) = world.step().chunks
        assert chunk.count == 32
        world.run()
    assert sorted(chunk.kept) == [16, 24, 32], "where it left the first text, and both of its ends"
    assert len(set(chunk.kept.values())) == 3
    world.cache.check_integrity([])


def test_a_sequence_that_ends_in_its_first_step_gives_the_slots_for_kept_states_back() -> None:
    world = World(state_slots=6, block_tokens=8, prefill_tokens=64)
    sequence = world.add(list(range(24)))
    assert sorted(world.scheduler.schedule().chunks[0].kept) == [16, 24]
    world.cache.check_integrity([sequence])
    assert world.cache.slots.held == 3
    world.scheduler.remove(sequence)
    assert world.cache.slots.held == world.cache.slots.kept == 0


def test_a_state_is_kept_where_no_running_sequence_wants_the_slot() -> None:
    world = World(state_slots=3, block_tokens=8, prefill_tokens=64)
    for n in range(3):
        world.add(list(range(100 * n, 100 * n + 20)))
    assert [chunk.kept for chunk in world.step().chunks] == [{}, {}, {}]
    world = World(state_slots=3, block_tokens=8, prefill_tokens=64)
    for n in range(2):
        world.add(list(range(100 * n, 100 * n + 24)))
    assert [list(chunk.kept) for chunk in world.step().chunks] == [[24], []]


def test_chunks_of_prompts_end_at_blocks_and_small_budgets_still_get_on() -> None:
    world = World(state_slots=4, block_tokens=8, prefill_tokens=3)
    long, short = world.add(list(range(30))), world.add(list(range(100, 105)))
    ends: list[int] = []
    while not long.prompt_done:
        ends += [chunk.end for chunk in world.step().chunks if chunk.sequence is long]
    assert ends == [8, 16, 24, 30]
    world.run()
    assert short in world.finished


def test_slots_bound_what_runs_and_kept_states_give_way() -> None:
    world = World(state_slots=3, block_tokens=4, max_sequences=8, prefill_tokens=64)
    for n in range(5):
        world.add(list(range(10 * n, 10 * n + 9)), output=20)
    world.step()
    assert len(world.scheduler.running) == 3
    assert world.cache.slots.kept == 0
    world.run()
    assert len(world.finished) == 5


def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened() -> None:
    world = World(pages=8, prefill_tokens=64, state_slots=5, block_tokens=4)
    first, second = world.add(list(range(9)), output=18), world.add(list(range(50, 59)), output=18)
    world.run()
    assert world.scheduler.preemptions > 0
    assert [sequence.generated for sequence in (first, second)] == [18, 18]


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    pages=st.integers(11, 24),
    max_sequences=st.integers(1, 6),
    prefill_tokens=st.integers(1, 24),
    state_slots=st.integers(1, 9),
    block_tokens=st.sampled_from([4, 8]),
    host_pages=st.sampled_from([0, 3, 30]),
    host_states=st.integers(0, 3),
    draft_tokens=st.integers(0, 4),
    right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_with_recurrent_state_too_everything_ends_and_every_slot_comes_back(
    requests: list[tuple[int, int, str, int, int, bool]],
    pages: int,
    max_sequences: int,
    prefill_tokens: int,
    state_slots: int,
    block_tokens: int,
    host_pages: int,
    host_states: int,
    draft_tokens: int,
    right: float,
) -> None:
    world = World(
        pages=pages,
        max_sequences=max_sequences,
        prefill_tokens=prefill_tokens,
        state_slots=state_slots + draft_tokens,
        block_tokens=block_tokens,
        host_pages=host_pages,
        host_states=host_states,
        draft_tokens=draft_tokens,
        right=right,
    )
    added: list[Sequence] = []
    for number, (prompt, output, tenant, priority, steps, is_cancelled) in enumerate(requests):
        text = [n % 3 for n in range(prompt)]
        leader = world.add(text, output=output, tenant=tenant, priority=priority)
        added.append(leader)
        if number % 3 == 0:
            added.append(world.add(text, output=output, tenant=tenant, priority=priority, leader=leader))
        for _ in range(steps):
            world.step()
        if is_cancelled and leader not in world.finished:
            world.scheduler.remove(leader)
            added.remove(leader)
            world.cache.check_integrity(world.scheduler.sequences())
    world.run()
    assert {id(s) for s in world.finished} == {id(s) for s in added}
    assert all(sequence.generated == sequence.max_tokens for sequence in world.finished)
    assert world.cache.pool.held == world.cache.slots.held == 0
    assert world.cache.host.held == 0


@pytest.mark.parametrize("state_slots", [0, 5])
def test_a_preempted_sequence_goes_on_from_host_memory_without_computing_again(state_slots: int) -> None:
    block = 4 if state_slots else 1
    world = World(pages=8, prefill_tokens=64, state_slots=state_slots, block_tokens=block, host_pages=8, host_states=1)
    sequences = [world.add([base + n for n in range(9)], output=18) for base in (0, 50)]
    computed = 0
    while world.scheduler.has_work:
        computed += world.step().tokens
    assert world.scheduler.preemptions > 0
    assert world.scheduler.swaps == world.scheduler.preemptions
    assert computed == sum(len(sequence.token_ids) - 1 for sequence in sequences)
    assert world.cache.host.held == 0


def test_a_sequence_that_ends_while_it_waits_gives_its_host_memory_back() -> None:
    world = World(pages=8, prefill_tokens=64, host_pages=8)
    world.add(list(range(9)), output=18)
    second = world.add(list(range(50, 59)), output=18)
    while not second.host_pages:
        world.step()
    assert world.cache.host.held == len(second.host_pages)
    world.scheduler.remove(second)
    assert world.cache.host.held == 0
    world.cache.check_integrity(world.scheduler.sequences())
    world.run()


def test_what_does_not_fit_host_memory_is_computed_again() -> None:
    world = World(pages=8, prefill_tokens=64, host_pages=2)
    sequences = [world.add([base + n for n in range(9)], output=18) for base in (0, 50)]
    world.run()
    assert world.scheduler.preemptions > world.scheduler.swaps == 0
    assert [sequence.generated for sequence in sequences] == [18, 18]


def test_a_kept_state_that_gives_way_is_found_again_in_host_memory() -> None:
    world = World(pages=60, prefill_tokens=64, state_slots=2, block_tokens=4, host_states=4)
    for n in range(3):
        world.add(list(range(20 * n, 20 * n + 12)), output=1)
        world.run()
    assert world.cache.host.spilled > 0
    for n in range(3):
        again = world.add([*range(20 * n, 20 * n + 12), 99], output=1)
        world.run()
        assert again.cached_tokens == 12
    world.cache.forget_prefixes()
    assert world.cache.host.spilled == 0


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=12),
    pages=st.integers(11, 24),
    state_slots=st.sampled_from([0, 7]),
    draft_tokens=st.integers(0, 3),
)
def test_nothing_is_preempted_where_the_whole_output_is_reserved(
    requests: list[tuple[int, int, int]], pages: int, state_slots: int, draft_tokens: int
) -> None:
    world = World(
        pages=pages,
        state_slots=state_slots,
        block_tokens=4 if state_slots else 1,
        reserves_output=True,
        draft_tokens=draft_tokens,
        right=0.7,
    )
    for number, (prompt, output, steps) in enumerate(requests):
        text = [n % 3 for n in range(prompt)]
        leader = world.add(text, output=output)
        if number % 3 == 0:
            world.add(text, output=output, leader=leader)
        for _ in range(steps):
            world.step()
    world.run()
    assert world.scheduler.preemptions == 0


def test_waiting_raises_the_priority_so_that_nobody_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_grpc.engine.scheduler.AGING_STEPS", 10)
    world = World(max_sequences=1)
    patient = world.add([1, 2, 3], priority=0)
    for _ in range(100):  # always one that is more important waits too
        if world.scheduler.waiting < 3:
            world.add([4, 5, 6], priority=2, tenant="ben")
        world.step()
        if patient in world.finished:
            return
    pytest.fail("it waits for ever")

"""Where drafts run and what becomes of their memory; no model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from tests.inference_grpc.engine.world import PAGE, World


def rooms(world: World) -> list[int]:
    return [chunk.room for chunk in world.step().chunks]


@pytest.mark.parametrize("state_slots", [0, 20])
def test_drafts_that_are_right_take_the_steps_of_their_tokens(state_slots: int) -> None:
    steps = {}
    for draft_tokens in (0, 3):
        world = World(
            draft_tokens=draft_tokens, right=1.0, state_slots=state_slots, block_tokens=4 if state_slots else 1
        )
        world.add(list(range(9)), output=40)
        steps[draft_tokens] = 0
        while world.scheduler.has_work:
            world.step()
            steps[draft_tokens] += 1
    assert steps[0] >= 40
    assert steps[3] < 30


def test_the_number_of_drafts_follows_how_the_last_ones_did() -> None:
    world = World(draft_tokens=3, right=0.0, prefill_tokens=64)
    sequence = world.add([1, 2, 3], output=60)
    world.step()
    sequence.draft_limit = 3
    world._chance.randint = lambda low, high: high  # type: ignore[method-assign]
    assert [rooms(world)[0] for _ in range(4)] == [3, 2, 1, 1]
    world._right = 1.0
    assert [rooms(world)[0] for _ in range(4)] == [1, 2, 3, 3]
    world._chance.randint = lambda low, high: 0  # type: ignore[method-assign]
    assert rooms(world) == [3]
    assert rooms(world) == [3]  # who did not draft was not wrong


def test_no_draft_is_made_at_the_last_token() -> None:
    world = World(draft_tokens=4, right=0.0)
    world.add([1, 2, 3], output=4)
    assert [rooms(world)[0] for _ in range(4)] == [0, 2, 1, 0]
    assert len(world.finished) == 1


def test_drafts_take_what_the_budget_leaves_and_prompts_go_on() -> None:
    world = World(draft_tokens=4, right=0.0, prefill_tokens=8, max_sequences=8)
    for n in range(5):
        world.add([n], output=50)
    world.step()
    world.step()
    long = world.add(list(range(50, 90)))
    for _ in range(10):
        batch = world.step()
        assert sum(chunk.room for chunk in batch.chunks) <= 8 - 5
    assert long.generated == 1  # a page of it each step


def test_nothing_gives_way_for_a_draft_and_its_pages_come_back() -> None:
    world = World(pages=6, draft_tokens=4, right=0.0, prefill_tokens=64)
    first, second = world.add([1, 2, 3], output=9), world.add([4, 5, 6], output=9)
    while world.scheduler.has_work:
        world.step()
        for sequence in world.scheduler.running:
            assert len(sequence.page_ids) <= world.cache.pages_for(len(sequence.token_ids) + 4)
    assert world.finished == [first, second]
    assert world.scheduler.preemptions == 0  # three pages each are enough for 12 tokens


def test_right_drafts_count_as_service_of_their_tenant() -> None:
    world = World(draft_tokens=3, right=1.0, max_sequences=1, prefill_tokens=64)
    world.add([1, 2, 3], output=40, tenant="ada")
    world.step()
    for n in range(3):
        world.add([10 + n], output=2, tenant="ben")
        world.add([20 + n], output=2, tenant="ada")
    while len(world.finished) < 4:
        world.step()
    assert world.accepted > 0
    assert [sequence.tenant for sequence in world.finished] == ["ada", "ben", "ben", "ben"]


def test_slots_of_drafts_are_counted_at_admission() -> None:
    world = World(state_slots=9, block_tokens=4, max_sequences=8, prefill_tokens=64, draft_tokens=3, right=0.5)
    for n in range(5):
        world.add(list(range(10 * n, 10 * n + 9)), output=20)
    world.step()
    assert len(world.scheduler.running) == 2  # of four slots each
    assert world.cache.slots.held == 8
    world.run()
    assert len(world.finished) == 5
    assert world.cache.slots.held == 0


def test_the_state_after_a_right_draft_becomes_the_sequences_own() -> None:
    cache = CacheCoordinator(pages=8, page_tokens=PAGE, state_slots=5, block_tokens=PAGE, draft_tokens=3)
    sequence = Sequence(key=0, choice=0, prompt_ids=[1, 2, 3], sampling=SamplingParams(), seed=0, max_tokens=9)
    assert cache.admit(sequence)
    first, drafts = sequence.state_slot, list(sequence.draft_slots)
    assert len({first, *drafts}) == 4
    cache.commit(sequence, 3)
    sequence.token_ids += [7, 7, 7]
    cache.accept(sequence, 2)
    assert (sequence.state_slot, sequence.draft_slots) == (drafts[1], [drafts[0], first, drafts[2]])
    assert sequence.computed == 5
    cache.check_integrity([sequence])
    lost = sequence.draft_slots.pop()
    with pytest.raises(AssertionError, match="state slots"):
        cache.check_integrity([sequence])
    sequence.draft_slots.append(lost)
    cache.release(sequence)
    cache.check_integrity([])
    assert cache.slots.free == 5


def test_pages_that_drafts_filled_can_be_found_when_they_were_right_only() -> None:
    cache = CacheCoordinator(pages=8, page_tokens=PAGE, draft_tokens=3)
    sequence = Sequence(key=0, choice=0, prompt_ids=[1, 2, 3], sampling=SamplingParams(), seed=0, max_tokens=9)
    assert cache.admit(sequence)
    assert cache.extend(sequence, 6)
    cache.commit(sequence, 3)
    sequence.append(7)
    again = Sequence(key=1, choice=0, prompt_ids=[1, 2, 3, 7, 8], sampling=SamplingParams(), seed=0, max_tokens=9)
    assert cache.longest_prefix(again) == []
    cache.accept(sequence, 1)
    assert cache.longest_prefix(again) == sequence.page_ids[:1]
    cache.shrink(sequence, 4)
    assert len(sequence.page_ids) == 1
    cache.check_integrity([sequence])


@settings(max_examples=100, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=14),
    pages=st.integers(14, 30),
    prefill_tokens=st.integers(1, 40),
    draft_tokens=st.integers(0, 4),
    right=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    host_pages=st.sampled_from([0, 20]),
)
def test_everything_ends_whatever_is_drafted(
    requests: list[tuple[int, int, int]],
    pages: int,
    prefill_tokens: int,
    draft_tokens: int,
    right: float,
    host_pages: int,
) -> None:
    world = World(
        pages=pages, prefill_tokens=prefill_tokens, draft_tokens=draft_tokens, right=right, host_pages=host_pages
    )
    added = []
    for number, (prompt, output, steps) in enumerate(requests):
        added.append(world.add([n % 3 for n in range(prompt)], output=output, tenant=f"t{number % 2}"))
        for _ in range(steps):
            world.step()
    world.run()
    assert {id(s) for s in world.finished} == {id(s) for s in added}
    assert all(sequence.generated == sequence.max_tokens for sequence in world.finished)
    assert world.cache.pool.held == world.cache.host.held == 0

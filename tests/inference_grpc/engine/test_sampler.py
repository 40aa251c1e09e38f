"""What is drawn follows the distribution that was asked for, and depends on nothing but its own sequence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.core.batch import SampledToken
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine.sampler import CANDIDATES, choice_seed, sample, uniform
from inference_grpc.errors import DeviceFault, EngineError, UnsupportedSchema

VOCABULARY = 2000


def make_sequence(*, prompt: list[int] | None = None, output: tuple[int, ...] = (), **fields: Any) -> Sequence:
    own = {name: fields.pop(name) for name in ("seed", "top_logprobs", "matcher") if name in fields}
    sequence = Sequence(
        key=0,
        choice=0,
        prompt_ids=prompt or [0],
        sampling=SamplingParams(**{"temperature": 0.0, **fields}),
        max_tokens=9,
        **{"seed": 1, **own},
    )
    for token_id in output:
        sequence.append(token_id)
    return sequence


def make_logits(seed: int = 0, rows: int = 1, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def pick(logits: torch.Tensor, sequence: Sequence) -> int:
    (token,) = sample(logits.clone(), [sequence])
    assert isinstance(token, SampledToken)
    return token.token_id


def draws(logits: torch.Tensor, count: int = 400, **fields: Any) -> Counter[int]:
    sequences = [make_sequence(seed=seed, **{"temperature": 1.0, **fields}) for seed in range(count)]
    tokens = sample(logits.expand(count, -1).clone(), sequences)
    return Counter(token.token_id for token in tokens if isinstance(token, SampledToken))


def test_greedy_is_the_likeliest_and_a_tiny_temperature_is_greedy() -> None:
    logits = make_logits()
    for temperature in (0.0, 1e-9, 1e-4):
        assert pick(logits, make_sequence(temperature=temperature)) == int(logits.argmax())


def test_draws_follow_the_probabilities() -> None:
    logits = torch.full((1, VOCABULARY), -1e9)
    logits[0, [5, 6, 7]] = torch.tensor([0.5, 0.3, 0.2]).log()
    counts = draws(logits, 3000)
    assert set(counts) == {5, 6, 7}
    for token_id, share in ((5, 0.5), (6, 0.3), (7, 0.2)):
        assert counts[token_id] / 3000 == pytest.approx(share, abs=0.03)
    cold = draws(logits, 3000, temperature=0.5)
    assert cold[5] / 3000 == pytest.approx(0.25 / 0.38, abs=0.03)


@pytest.mark.parametrize("spread", [0.05, 3.0], ids=["flat: the whole vocabulary is sorted", "peaked"])
@pytest.mark.parametrize(
    "fields",
    [{"top_k": 3}, {"top_k": 700}, {"top_p": 0.3}, {"top_p": 0.9}, {"min_p": 0.5}, {"top_k": 50, "top_p": 0.5}],
)
def test_only_the_tokens_that_the_filters_leave_are_drawn(fields: dict[str, Any], spread: float) -> None:
    logits = make_logits(spread=spread)
    probabilities, order = logits[0].double().softmax(-1).sort(descending=True)
    keep = torch.arange(VOCABULARY) < fields.get("top_k", VOCABULARY)
    keep &= probabilities.cumsum(-1) - probabilities < fields.get("top_p", 1.0) + 1e-6
    keep &= probabilities >= fields.get("min_p", 0.0) * probabilities[0] - 1e-9
    allowed = set(order[keep].tolist())
    drawn = draws(logits, **fields)
    assert set(drawn) <= allowed
    assert len(drawn) > min(len(allowed), 60) * 0.5 if spread < 1 else len(drawn) >= 1


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    place=st.integers(0, 5),
    others=st.integers(0, 6),
    fields=st.sampled_from([{}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.99}]),
    spread=st.sampled_from([0.1, 3.0]),
)
def test_a_draw_does_not_depend_on_the_batch(
    seed: int, place: int, others: int, fields: dict[str, Any], spread: float
) -> None:
    logits = make_logits(seed % 100, others + 1, spread)
    place = min(place, others)
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_p": 0.5}, {"temperature": 2.0}, {"top_k": 600}]
    sequences = [make_sequence(seed=n, **{"temperature": 1.0, **kinds[n % 4]}) for n in range(others)]
    mine = make_sequence(seed=seed, output=(3, 4), **{"temperature": 0.9, **fields})
    sequences.insert(place, mine)
    together = sample(logits.clone(), sequences)[place]
    assert together == SampledToken(pick(logits[place : place + 1], mine))


def test_seed_and_place_choose_the_number() -> None:
    numbers = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(numbers) == 2500
    assert all(0 <= number < 1 for number in numbers)
    assert sum(numbers) / 2500 == pytest.approx(0.5, abs=0.02)
    assert choice_seed(9, 0) == 9
    assert len({choice_seed(seed, choice) for seed in range(20) for choice in range(20)}) == 400
    assert 0 <= uniform(choice_seed(-5, 0), 0) < 1


def test_penalties_count_the_output_and_repetition_the_prompt_too() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, :4] = torch.tensor([5.0, 4.9, 4.8, -1.0])
    assert pick(logits, make_sequence(output=(0,))) == 0
    assert pick(logits, make_sequence(output=(0,), presence_penalty=0.15)) == 1
    assert pick(logits, make_sequence(output=(0, 0, 1), frequency_penalty=0.15)) == 2
    assert pick(logits, make_sequence(output=(0,), frequency_penalty=-2.0)) == 0
    assert pick(logits, make_sequence(prompt=[0, 1], repetition_penalty=1.1)) == 2
    assert pick(logits, make_sequence(prompt=[0], presence_penalty=2.0)) == 0


def test_a_bias_moves_a_token_and_nothing_outweighs_a_constraint() -> None:
    logits = make_logits()
    assert pick(logits, make_sequence(logit_bias={17: 100.0})) == 17
    assert pick(logits, make_sequence(logit_bias={int(logits.argmax()): -100.0})) != int(logits.argmax())
    for temperature in (0.0, 1.0):
        only = make_sequence(matcher=OnlyMatcher([33, 1999]), logit_bias={17: 100.0}, temperature=temperature)
        assert pick(logits, only) in (33, 1999)


class OnlyMatcher:
    """Allows some tokens; breaks when it has none."""

    def __init__(self, allowed: list[int]) -> None:
        self._allowed = allowed

    def fill(self, bitmask: torch.Tensor, tokens_left: int | None = None) -> None:
        if not self._allowed:
            raise UnsupportedSchema("too complex", keyword="complexity")
        words = [0] * bitmask.shape[0]
        for token_id in self._allowed:
            words[token_id // 32] |= 1 << (token_id % 32)
        bitmask.copy_(torch.tensor([word - (1 << 32) if word >= 1 << 31 else word for word in words]))

    def accept(self, token_id: int) -> None:
        assert token_id in self._allowed

    def is_done(self) -> bool:
        return False


def test_a_row_that_is_not_finite_or_cannot_be_constrained_fails_alone() -> None:
    logits = make_logits(rows=4)
    logits[1, 7] = float("nan")
    logits[3] = float("inf")
    sequences = [
        make_sequence(),
        make_sequence(temperature=1.0),
        make_sequence(matcher=OnlyMatcher([])),
        make_sequence(),
    ]
    first, second, third, fourth = sample(logits, sequences)
    assert isinstance(first, SampledToken)
    assert [type(error) for error in (second, third, fourth)] == [DeviceFault, UnsupportedSchema, DeviceFault]
    assert isinstance(third, EngineError)


def test_log_probabilities_are_the_models_own() -> None:
    logits = make_logits()
    expected = logits[0].log_softmax(-1)
    (token,) = sample(logits.clone(), [make_sequence(top_logprobs=3, temperature=0.0, logit_bias={17: 100.0})])
    assert isinstance(token, SampledToken)
    assert (token.token_id, token.logprob) == (17, pytest.approx(float(expected[17]), abs=1e-5))
    values, ids = expected.topk(3)
    assert [token_id for token_id, _ in token.top] == ids.tolist()
    assert [value for _, value in token.top] == pytest.approx(values.tolist())
    assert make_sequence(top_logprobs=0).top_logprobs == 0
    (plain,) = sample(logits.clone(), [make_sequence(top_logprobs=0)])
    assert isinstance(plain, SampledToken)
    assert plain.top == ()
    assert plain.logprob is not None


def test_more_candidates_than_there_are_tokens_are_no_problem() -> None:
    assert CANDIDATES > 40
    (token,) = sample(torch.zeros(1, 40), [make_sequence(temperature=1.0, top_k=100, top_p=0.9)])
    assert isinstance(token, SampledToken)


@pytest.mark.parametrize("vocabulary", [2048, VOCABULARY])
def test_of_equals_the_lowest_is_likeliest_wherever_they_stand(vocabulary: int) -> None:
    for first, second in ((0, 1), (255, 256), (3, vocabulary - 1), (700, 1000)):
        logits = make_logits()[:, :1].expand(2, vocabulary).clone()
        logits[:, [first, second]] = 9.0
        logits[1, first] = -9.0
        tokens = sample(logits, [make_sequence(), make_sequence()])
        assert [token.token_id for token in tokens if isinstance(token, SampledToken)] == [first, second]

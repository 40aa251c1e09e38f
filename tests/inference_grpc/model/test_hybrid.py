"""The hybrid's logits are those of `transformers` on the same weights, and the same bits in any chunks and company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.model.hybrid import HybridModel
from inference_grpc.model.linear import Numerics
from inference_grpc.model.memory import StatePool
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.model.hybrids import (
    in_chunks,
    load_hybrid,
    make_sequence,
    reference_logits,
    token_by_token,
    transformers_hybrid,
)

GOLDEN = Path("tests/golden/logits/hybrid-tiny.npz")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("hybrid"), dtype=torch.float32)


@pytest.fixture(scope="module")
def model(folder: Path) -> HybridModel:
    return load_hybrid(folder)


@pytest.fixture(scope="module")
def half_model(folder: Path) -> HybridModel:
    return load_hybrid(folder, Numerics("float16"))


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return np.random.default_rng(3).integers(0, 270, 200).tolist()


@pytest.fixture(scope="module")
def expected(folder: Path, token_ids: list[int]) -> torch.Tensor:
    return reference_logits(transformers_hybrid(folder), token_ids)


SIZES: list[list[int]] = [[], [1], [2], [3, 1, 2], [64], [65, 63], [7, 33, 1, 40], [16] * 12, [128, 1]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_prefill_in_any_chunks_equals_transformers(
    model: HybridModel, token_ids: list[int], expected: torch.Tensor, sizes: list[int]
) -> None:
    torch.testing.assert_close(in_chunks(model, make_sequence(token_ids), sizes), expected[-1], **TOLERANCE)


def test_every_split_point_of_a_prompt_equals_transformers(
    model: HybridModel, token_ids: list[int], folder: Path
) -> None:
    short = token_ids[:70]
    last = reference_logits(transformers_hybrid(folder), short)[-1]
    for split in range(1, 70):
        torch.testing.assert_close(in_chunks(model, make_sequence(short), [split]), last, **TOLERANCE)


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 129])
def test_lengths_around_a_block_equal_transformers(
    model: HybridModel, token_ids: list[int], expected: torch.Tensor, length: int
) -> None:
    actual = in_chunks(model, make_sequence(token_ids[:length]), [])
    torch.testing.assert_close(actual, expected[length - 1], **TOLERANCE)


def test_token_by_token_equals_transformers(model: HybridModel, token_ids: list[int], expected: torch.Tensor) -> None:
    torch.testing.assert_close(token_by_token(model, token_ids), expected, **TOLERANCE)


def test_a_ragged_batch_without_padding_equals_transformers(
    model: HybridModel, token_ids: list[int], expected: torch.Tensor
) -> None:
    lengths = [1, 5, 64, 100, 131, 2]
    sequences = [make_sequence(token_ids[:n], first_page=20 * i, slot=i) for i, n in enumerate(lengths)]
    model.forward(Batch([Chunk(sequences[3], 0, 99), Chunk(sequences[4], 0, 64)]))
    starts = [0, 0, 0, 99, 64, 0]
    chunks = [Chunk(s, start, n - start) for s, start, n in zip(sequences, starts, lengths, strict=True)]
    logits = model.forward(Batch(chunks))
    for row, length in zip(logits, lengths, strict=True):
        torch.testing.assert_close(row, expected[length - 1], **TOLERANCE)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True, "mtp_num_hidden_layers": 0},
        {"num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {"linear_num_key_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 64, "num_key_value_heads": 1},
        {"hidden_size": 96, "head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 3},
    ],
    ids=["tied", "other order", "other heads", "other sizes"],
)
def test_other_shapes_equal_transformers(tmp_path: Path, token_ids: list[int], changes: dict[str, Any]) -> None:
    folder = write_tiny(tmp_path / "m", dtype=torch.float32, **changes)
    expected = reference_logits(transformers_hybrid(folder), token_ids)
    actual = in_chunks(load_hybrid(folder), make_sequence(token_ids), [64, 17, 47])
    torch.testing.assert_close(actual, expected[-1], **TOLERANCE)


def test_bf16_weights_equal_transformers_of_the_same_values(tmp_path: Path, token_ids: list[int]) -> None:
    folder = write_tiny(tmp_path / "m", dtype=torch.bfloat16)
    expected = reference_logits(transformers_hybrid(folder), token_ids)
    actual = in_chunks(load_hybrid(folder), make_sequence(token_ids), [64])
    torch.testing.assert_close(actual, expected[-1], **TOLERANCE)


def test_float16_products_stay_close(half_model: HybridModel, token_ids: list[int], expected: torch.Tensor) -> None:
    actual = in_chunks(half_model, make_sequence(token_ids), [64])
    assert (actual - expected[-1]).abs().max() < 1e-2
    assert actual.argmax() == expected[-1].argmax()


def test_logits_are_the_golden_ones(model: HybridModel, token_ids: list[int]) -> None:
    """Kept so that no library is needed to notice a change; `make golden` rewrites them."""
    golden = np.load(GOLDEN)
    assert golden["token_ids"].tolist() == token_ids
    actual = token_by_token(model, token_ids[:130])[[0, 1, 63, 64, 129]]
    torch.testing.assert_close(actual, torch.from_numpy(golden["logits"]), **TOLERANCE)


def test_states_kept_inside_a_chunk_have_the_bits_of_a_prompt_cut_there(
    model: HybridModel, token_ids: list[int]
) -> None:
    whole, cut = make_sequence(token_ids), make_sequence(token_ids, first_page=20, slot=1)
    model.forward(Batch([Chunk(whole, 0, len(token_ids), kept={64: 4, 128: 5})]))
    for position, slot in ((64, 4), (128, 5)):
        model.forward(Batch([Chunk(cut, position - 64, 64)]))
        states = [pool for pool in model._pools if isinstance(pool, StatePool)]
        kept = [part for pool in states for part in (pool.state, pool.conv)] + [model._carried]
        assert all(torch.equal(part[slot], part[1]) for part in kept)


# Whole blocks of 64, as the scheduler cuts them, and what is left at the end of the prompt.
ALIGNED = st.lists(st.sampled_from([64, 128]), max_size=3)


@pytest.mark.parametrize("precision", ["float16", "float32"])
@settings(max_examples=15, deadline=None)
@given(sizes=ALIGNED, others=st.integers(0, 6), generated=st.integers(0, 70), seed=st.integers(0, 99))
def test_bits_do_not_depend_on_chunks_or_neighbours_or_recomputing(
    model: HybridModel,
    half_model: HybridModel,
    token_ids: list[int],
    precision: str,
    sizes: list[int],
    others: int,
    generated: int,
    seed: int,
) -> None:
    tested = model if precision == "float32" else half_model
    prompt = len(token_ids) - generated
    alone = in_chunks(tested, make_sequence(token_ids, prompt=prompt), [prompt, *[1] * generated])
    # Computed again in one go, as after a preemption, from the prompt and what was generated.
    again = in_chunks(tested, make_sequence(token_ids, first_page=20, slot=1, prompt=prompt), sizes)
    assert torch.equal(again, alone)

    generator = np.random.default_rng(seed)
    neighbours = [
        make_sequence(token_ids[: generator.integers(1, 140)], first_page=40 + 10 * n, slot=2 + n)
        for n in range(others)
    ]
    chunks = [Chunk(neighbour, 0, len(neighbour.token_ids)) for neighbour in neighbours]
    in_company = make_sequence(token_ids, first_page=20, slot=1, prompt=prompt)
    tested.forward(Batch([*chunks, Chunk(in_company, 0, len(token_ids) - 1)]))
    decoding = [Chunk(other, len(other.token_ids) - 1, 1) for other in neighbours]
    place = int(generator.integers(0, others + 1))
    batch = Batch([*decoding[:place], Chunk(in_company, len(token_ids) - 1, 1), *decoding[place:]])
    assert torch.equal(tested.forward(batch)[place], alone)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "rope",
    [
        YARN,
        YARN | {"beta_fast": 8, "beta_slow": 2, "attention_factor": 1.3},
        YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False},
        YARN | {"mrope_interleaved": True, "mrope_section": [2, 1, 1]},
        {"rope_type": "linear", "factor": 3.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=["yarn", "betas", "mscale", "sections", "linear", "llama3"],
)
def test_stretched_contexts_equal_transformers(tmp_path: Path, token_ids: list[int], rope: dict[str, Any]) -> None:
    rope = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5, "mrope_section": [6, 1, 1]} | rope
    path = write_tiny(tmp_path / "m", dtype=torch.float32, rope_parameters=rope, max_position_embeddings=64)
    model = load_hybrid(path)
    reference = reference_logits(transformers_hybrid(path), token_ids)
    torch.testing.assert_close(in_chunks(model, make_sequence(token_ids), [64]), reference[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(token_by_token(model, token_ids), reference, rtol=1e-4, atol=1e-4)
    assert model.context_tokens == (256 if rope["rope_type"] == "yarn" else 64)
    plain = write_tiny(
        tmp_path / "plain",
        dtype=torch.float32,
        rope_parameters=rope | {"rope_type": "default"},
        max_position_embeddings=256,
    )
    difference = in_chunks(load_hybrid(plain), make_sequence(token_ids), []) - reference[-1]
    assert difference.abs().max() > 1e-2  # the stretch shows

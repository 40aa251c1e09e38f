"""The draft layer's keys and values, written by every step: after the final norm, without holes, in any chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inference_grpc.core.batch import Batch, Chunk, Move
from inference_grpc.model.hybrid import HybridModel, rms_norm, rotate
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.model.hybrids import PAGE, in_chunks, load_hybrid, make_sequence, transformers_hybrid

TOKENS = np.random.default_rng(6).integers(0, 270, 150).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("mtp"), dtype=torch.float32)


@pytest.fixture(scope="module")
def model(folder: Path) -> HybridModel:
    return load_hybrid(folder)


def cached(model: HybridModel, page_ids: list[int], tokens: int) -> torch.Tensor:
    assert model._mtp_pool is not None
    return model._mtp_pool.pages[page_ids].flatten(0, 1)[:tokens].clone()


def expected(folder: Path, model: HybridModel, *, is_post_norm: bool = True) -> torch.Tensor:
    """Place p from the hidden state of token p - 1 and the embedding of token p, in plain arithmetic."""
    reference = transformers_hybrid(folder)
    kept: list[torch.Tensor] = []
    hook = reference.model.norm.register_forward_hook(lambda module, inputs, output: kept.extend((*inputs, output)))
    with torch.inference_mode():
        reference(torch.tensor([TOKENS]), use_cache=False)
    hook.remove()
    hidden = kept[1 if is_post_norm else 0][0]
    mtp = model._weights.mtp
    assert mtp is not None
    embedded = model._weights.embedding[TOKENS]
    x = model._mtp_input(embedded[1:], hidden[:-1], mtp)
    x = rms_norm(x, mtp.layer.input_norm, 1e-6)
    rotation = model._rotation(torch.arange(1, len(TOKENS)))
    return model._project(x, mtp.layer.mixer, rotation)[2]  # type: ignore[arg-type]


def test_it_is_fed_with_hidden_states_after_the_final_norm(folder: Path, model: HybridModel) -> None:
    sequence = make_sequence(TOKENS)
    in_chunks(model, sequence, [])
    actual = cached(model, sequence.page_ids, len(TOKENS))[1:]
    torch.testing.assert_close(actual, expected(folder, model), rtol=1e-4, atol=1e-4)
    assert (actual - expected(folder, model, is_post_norm=False)).abs().max() > 0.05


@pytest.mark.parametrize("sizes", [[64], [64, 64], [1], [63, 1, 1], [128, 21]], ids=str)
def test_chunk_borders_leave_no_hole(model: HybridModel, sizes: list[int]) -> None:
    whole, cut = make_sequence(TOKENS), make_sequence(TOKENS, first_page=40, slot=1)
    in_chunks(model, whole, [])
    in_chunks(model, cut, sizes)
    first, second = (cached(model, sequence.page_ids, len(TOKENS)) for sequence in (whole, cut))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_a_prefix_hit_goes_on_with_the_draft_layer_too(model: HybridModel) -> None:
    """Two texts that part at 64 share the pages before it; each writes its own place 64, from the kept hidden state."""
    other = [*TOKENS[:64], *TOKENS[100:140]]
    owner = make_sequence(TOKENS, slot=0)
    in_chunks(model, owner, [64, 60])
    model.forward(Batch([Chunk(make_sequence(TOKENS[:64], first_page=60, slot=2), 0, 64)]))
    shared = make_sequence(other, first_page=40, slot=1)
    shared.page_ids[:4] = owner.page_ids[:4]
    before = cached(model, owner.page_ids, 64)
    model.forward(Batch([Chunk(shared, 64, len(other) - 64)], [Move("state", 2, 1)]))
    alone = make_sequence(other, first_page=80, slot=3)
    in_chunks(model, alone, [])
    found, fresh = (cached(model, sequence.page_ids, len(other)) for sequence in (shared, alone))
    torch.testing.assert_close(found[1:], fresh[1:], rtol=1e-4, atol=1e-5)
    assert torch.equal(cached(model, owner.page_ids, 64), before)
    assert PAGE * 4 == 64


def test_rotation_leaves_the_other_dimensions_alone(model: HybridModel) -> None:
    x = torch.randn(3, 2, 32)
    turned = rotate(x, model._rotation(torch.tensor([0, 5, 200_000])))
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))

"""The draft layer's keys and values, written by every step: after the final norm, without holes, in any chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inference_grpc.core.batch import Batch, Chunk, Move
from inference_grpc.core.sequence import Sequence
from inference_grpc.model.hybrid import GatedAttentionWeights, HybridModel, rms_norm, rotate
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


def drafted(model: HybridModel, sequence: Sequence, count: int) -> list[torch.Tensor]:
    """Logits of the draft layer for so many tokens after the last one, each draft being the likeliest."""
    chunk, found = Chunk(sequence, len(sequence.token_ids) - 1, 1), []
    for _ in range(count):
        found.append(model.draft(Batch([chunk]))[0])
        chunk = replace(chunk, drafts=(*chunk.drafts, int(found[-1].argmax())))
    return found


def expected_drafts(folder: Path, model: HybridModel, count: int) -> list[torch.Tensor]:
    """The same in plain arithmetic on `transformers`' hidden states, its own where those end, over dense attention."""
    with torch.inference_mode():
        hidden = transformers_hybrid(folder).model(torch.tensor([TOKENS])).last_hidden_state[0, :-1]
    config, mtp, tokens, found = model.config, model._weights.mtp, list(TOKENS), []
    assert mtp is not None
    mixer = mtp.layer.mixer
    assert isinstance(mixer, GatedAttentionWeights)
    for _ in range(count):
        x = model._mtp_input(model._weights.embedding[tokens[1:]], hidden, mtp)
        normed = rms_norm(x, mtp.layer.input_norm, 1e-6)
        q, gate, kv = model._project(normed, mixer, model._rotation(torch.arange(1, len(tokens))))
        k, v = kv.view(len(x), 2, config.kv_heads, config.head_size).repeat_interleave(2, 2).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * config.head_size**-0.5
        weights = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        x = x + mixer.out_projection(attended * torch.sigmoid(gate))
        gate, up = mtp.layer.gate_up(rms_norm(x, mtp.layer.post_norm, 1e-6)).chunk(2, dim=-1)
        y = rms_norm(x + mtp.layer.down(torch.nn.functional.silu(gate) * up), mtp.norm, 1e-6)
        found.append(model._weights.head(y)[-1, : model.vocabulary])
        hidden, tokens = torch.cat([hidden, y[-1:]]), [*tokens, int(found[-1].argmax())]
    return found


@pytest.mark.parametrize("sizes", [[], [64, 64, 1], [128, 21]], ids=str)
def test_its_drafts_are_those_of_the_equations(folder: Path, model: HybridModel, sizes: list[int]) -> None:
    sequence = make_sequence([*TOKENS, 0, 0, 0, 0])
    sequence.token_ids = TOKENS[:-1]
    in_chunks(model, sequence, sizes)
    sequence.token_ids = list(TOKENS)
    for actual, wanted in zip(drafted(model, sequence, 4), expected_drafts(folder, model, 4), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_rows_of_drafts_have_the_bits_of_plain_decoding_and_so_do_the_states_after_them(model: HybridModel) -> None:
    """Over the border of a span, among other chunks, from each slot that drafts left a state in."""
    tokens, prompt = TOKENS[:70], 61
    plain = make_sequence(tokens, prompt=prompt)
    plain.token_ids = tokens[:prompt]
    in_chunks(model, plain, [])
    expected = []
    for end in range(prompt + 1, len(tokens) + 1):
        plain.token_ids = tokens[:end]
        expected.append(model.forward(Batch([Chunk(plain, end - 1, 1)]))[0])
    for right in range(5):
        sequence = make_sequence(tokens, prompt=prompt, first_page=20, slot=1)
        sequence.draft_slots = [2, 3, 4, 5]
        sequence.token_ids = tokens[:prompt]
        in_chunks(model, sequence, [])
        sequence.token_ids = tokens[: prompt + 1]
        other = make_sequence(TOKENS[70:90], first_page=40, slot=6)
        drafts = [*tokens[prompt + 1 : prompt + 1 + right], 5, 6, 7, 8][:4]
        drafted(model, sequence, 4)  # what it leaves in the draft layer's pages does not show
        batch = Batch([Chunk(other, 0, 20), Chunk(sequence, prompt, 1, drafts=tuple(drafts))])
        logits = model.forward(batch)
        assert [(end.sequence, end.row) for end in batch.ends] == [(other, 0), (sequence, 1)]
        assert torch.equal(logits[1 : 2 + right], torch.stack(expected[: 1 + right]))
        sequence.state_slot = [1, 2, 3, 4, 5][right]
        for end in range(prompt + 2 + right, len(tokens) + 1):
            sequence.token_ids = tokens[:end]
            assert torch.equal(model.forward(Batch([Chunk(sequence, end - 1, 1)]))[0], expected[end - prompt - 1])
        mine, theirs = (cached(model, each.page_ids, len(tokens))[1:] for each in (sequence, plain))
        assert torch.equal(mine, theirs)


def test_rotation_leaves_the_other_dimensions_alone(model: HybridModel) -> None:
    x = torch.randn(3, 2, 32)
    turned = rotate(x, model._rotation(torch.tensor([0, 5, 200_000])))
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))

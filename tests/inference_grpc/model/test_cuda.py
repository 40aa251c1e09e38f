"""The hybrid of the GPU on the CPU: its plain way against `transformers`, its fused step against its plain way."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference_grpc.core.batch import Batch, Chunk, Move
from inference_grpc.model.checkpoint import HfCheckpoint
from inference_grpc.model.cuda import decode
from inference_grpc.model.cuda import load as cuda_load
from inference_grpc.model.cuda.load import load_cuda_hybrid, recipe_kinds
from inference_grpc.model.cuda.matrices import MatrixMaker, steady_product
from inference_grpc.model.cuda.model import CudaHybridModel, chunk_misfit, misfit
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.formats import Nvfp4
from inference_grpc.model.hybrid_config import read_hf_config
from inference_grpc.model.recipe import Recipe, read_recipe
from inference_grpc.model.tiny import write_tiny
from kernels.native.gemm import WIDE, launch
from kernels.nvfp4.reference import dequantize, quantize
from kernels.paths import Choice
from tests.inference_grpc.model import native_forms
from tests.inference_grpc.model.hybrids import in_chunks, make_sequence, reference_logits, transformers_hybrid

CPU = torch.device("cpu")
FUSED = Choice(frozenset({"packed", "fused", "paged", "chunked"}), ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return np.random.default_rng(3).integers(0, 270, 150).tolist()


def load(
    folder: Path, recipe: str | Recipe = "auto", *, ways: Choice | None = None, invariant: bool = False
) -> CudaHybridModel:
    """`ways`: what the table is made to say."""
    checkpoint = HfCheckpoint(folder)
    config = read_hf_config(folder / "config.json", checkpoint.config)
    wanted = read_recipe(recipe) if isinstance(recipe, str) else recipe
    with pytest.MonkeyPatch.context() as patch:
        if ways is not None:
            patch.setattr(cuda_load, "choose", lambda *arguments, **named: ways)
        model, _ = load_cuda_hybrid(
            checkpoint,
            config,
            name="tiny",
            vocabulary=320,
            recipe=wanted,
            device=CPU,
            passed=lambda gate: True,
            invariant=invariant,
        )
    model.allocate(pages=40, page_tokens=16, state_slots=4)
    return model


@pytest.mark.parametrize("sizes", [[], [64], [65, 63], [7, 33, 1, 40], [1] * 20], ids=str)
def test_the_plain_way_equals_transformers(folder: Path, token_ids: list[int], sizes: list[int]) -> None:
    expected = reference_logits(transformers_hybrid(folder), token_ids)[-1]
    actual = in_chunks(load(folder), make_sequence(token_ids), sizes)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_text_goes_on_from_a_state_kept_inside_a_chunk(folder: Path, token_ids: list[int]) -> None:
    model = load(folder)
    first = make_sequence(token_ids)
    expected = model.forward(Batch([Chunk(first, 0, len(token_ids), kept={64: 2, 128: 3})]))[0]
    for position, slot in ((64, 2), (128, 3)):
        again = make_sequence(token_ids, slot=slot)
        actual = model.forward(Batch([Chunk(again, position, len(token_ids) - position)]))[0]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_several_sequences_of_one_step_equal_each_alone(folder: Path, token_ids: list[int]) -> None:
    model = load(folder)
    first, second = token_ids[:70], token_ids[70:100]
    alone = [in_chunks(load(folder), make_sequence(ids), []) for ids in (first, second)]
    sequences = [make_sequence(first), make_sequence(second, first_page=8, slot=1)]
    together = model.forward(Batch([Chunk(s, 0, len(s.token_ids)) for s in sequences]))
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-4)


def test_a_slot_begins_empty_and_moves_take_pages_and_states_along(folder: Path, token_ids: list[int]) -> None:
    model = load(folder)
    in_chunks(model, make_sequence(token_ids[:50]), [])  # leaves its state in slot 0
    expected = in_chunks(load(folder), make_sequence(token_ids[:64]), [])
    sequence = make_sequence(token_ids[:64])
    model.forward(Batch([Chunk(sequence, 0, 63)]))
    moved = make_sequence(token_ids[:64], first_page=20, slot=2)
    moves = [Move("page", a, b) for a, b in zip(sequence.page_ids, moved.page_ids, strict=True)]
    moved_logits = model.forward(Batch([Chunk(moved, 63, 1)], [*moves, Move("state", 0, 2)]))[0]
    torch.testing.assert_close(moved_logits, expected, rtol=1e-4, atol=1e-4)


def test_cleared_pages_hold_nothing(folder: Path, token_ids: list[int]) -> None:
    model = load(folder, "fp8")
    sequence = make_sequence(token_ids[:20])
    model.forward(Batch([Chunk(sequence, 0, 20)]))
    model.clear_pages(sequence.page_ids)
    assert model._memory is not None
    pages = [part for layer in model._memory.layers for part in vars(layer).values() if part.shape[0] == 41]
    assert len(pages) == 2
    assert not any(bool(part.view(torch.uint8).any()) for part in pages)


def test_an_embedding_in_fp8_is_kept_so_and_looked_up_exactly(folder: Path, token_ids: list[int]) -> None:
    recipe = Recipe("narrow table", (("embed_tokens", "fp8"),))
    model = load(folder, recipe)
    embedding = model.weights.trunk.embedding
    assert embedding.values.dtype == torch.float8_e4m3fn
    stored = HfCheckpoint(folder).matrix("embed_tokens", 320, embedding.values.shape[1])
    expected = recipe.convert("embed_tokens", stored).to_float()
    ids = torch.tensor(token_ids)
    assert torch.equal(embedding.rows(ids), expected[ids])
    assert model.weights.nbytes < load(folder).weights.nbytes
    actual = in_chunks(model, make_sequence(token_ids), [64])
    reference = in_chunks(load(folder), make_sequence(token_ids), [64])
    assert float((actual - reference).norm() / reference.norm()) < 0.2
    assert not torch.equal(actual, reference)


@pytest.mark.parametrize("recipe", ["bf16", "fp8", "nvfp4"])
def test_the_fused_step_equals_the_plain_way(
    recipe: str, tmp_path: Path, token_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches of Triton in its interpreter, those of CUDA C++ as plain PyTorch: what goes where is what is tested."""
    pytest.importorskip("triton", reason="Triton is not installed; the fused step's wiring is tested where it is")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter: TRITON_INTERPRET=1")
    native_forms.install(monkeypatch)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = write_tiny(tmp_path / "model", head_dim=64)
    plain, fused = load(folder, recipe), load(folder, recipe, ways=FUSED)
    prompts = []
    for model in (plain, fused):  # a prompt each, then tokens in company and alone
        sequences = [make_sequence(token_ids[:70]), make_sequence(token_ids[80:83], first_page=8, slot=1)]
        for sequence, length in zip(sequences, (66, 2), strict=True):
            sequence.token_ids = sequence.token_ids[:length]
        prompts.append(model.forward(Batch([Chunk(s, 0, len(s.token_ids)) for s in sequences])).clone())
    assert float((prompts[0] - prompts[1]).norm() / prompts[0].norm()) < 0.06
    long, short = token_ids[:70], token_ids[80:83]
    steps = [[(long, 66, 0, 0), (short, 2, 8, 1)], [(long, 67, 0, 0)], [(long, 68, 0, 0)]]
    for step in steps:
        found = []
        for model in (plain, fused):
            chunks = []
            for ids, start, page, slot in step:
                sequence = make_sequence(ids[: start + 1], first_page=page, slot=slot)
                chunks.append(Chunk(sequence, start, 1))
            found.append(model.forward(Batch(chunks)))
        difference = (found[0] - found[1]).norm() / found[0].norm()
        assert float(difference) < 0.06, f"{step}: {difference}"


def test_many_rows_of_the_head_go_through_the_decode_kernel_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    native_forms.install(monkeypatch)
    matrix = quantize(torch.randn(48, 64))
    made = MatrixMaker(CPU, packed=True).make([Nvfp4(matrix)])
    x = torch.randn(70, 64).bfloat16()
    torch.testing.assert_close(made.few(x), x.float() @ dequantize(matrix).T, rtol=1e-4, atol=1e-4)


def test_invariance_is_claimed_only_where_a_trial_shows_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(folder)
    assert not model.is_batch_invariant()  # not asked for
    model._invariant = True
    calls: list[int] = []
    forward = model.forward

    def disturbed(batch: Batch) -> torch.Tensor:
        calls.append(len(batch.chunks))
        # Rows as they would be if each were computed alone, but for a breath of company.
        rows = torch.cat([forward(Batch([chunk])) for chunk in batch.chunks])
        return rows + (1e-6 if company and len(batch.chunks) > 1 else 0.0)

    monkeypatch.setattr(model, "forward", disturbed)
    company = False
    assert model.is_batch_invariant()
    assert calls == [3, 3, 1, 1, 1, 1, 1, 1]
    company = True
    assert not model.is_batch_invariant()


def test_sizes_are_rounded_up_to_a_few() -> None:
    assert [decode.batch_bucket(rows) for rows in (1, 2, 3, 8, 9, 17, 33, 65)] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [decode.context_bucket(tokens, 40000) for tokens in (1, 1024, 1025, 20000)] == [1024, 1024, 4096, 40000]


def test_rows_that_only_fill_up_point_to_the_padding(folder: Path, token_ids: list[int]) -> None:
    model = load(folder)
    assert model._memory is not None
    inputs = decode.HostInputs.make(4, 6, pinned=False)
    sequences = [make_sequence(token_ids[:20], first_page=3, slot=2), make_sequence(token_ids[:40], first_page=9)]
    chunks = [Chunk(sequences[0], 19, 1), Chunk(sequences[1], 39, 1)]
    inputs.fill(chunks, model._memory)
    assert inputs.numbers.tolist() == [[token_ids[19], token_ids[39], 0, 0], [19, 39, 0, 0], [2, 0, 4, 4]]
    assert inputs.tables.tolist() == [[[4, 3, 40, 40, 40, 40], [11, 10, 9, 40, 40, 40], [40] * 6, [40] * 6]]
    inputs.fill([], model._memory)
    assert inputs.numbers[2].tolist() == [4] * 4


def test_shapes_that_the_fused_step_cannot_take_are_named(folder: Path) -> None:
    config = read_hf_config(folder / "config.json", HfCheckpoint(folder).config)
    assert misfit(config) == chunk_misfit(config) == "heads of Gated DeltaNet of [32, 32] are not [128, 128]"
    large = dataclasses.replace(config, key_size=128, value_size=128)
    assert (misfit(large), chunk_misfit(large)) == ("a head size of 32 is not 256 or 1024", "")


def test_a_wrong_shape_never_reaches_a_packed_product() -> None:
    def ask(rows: int, columns: int, *, x: torch.Tensor, k_warps: int) -> None:
        nothing = torch.empty(0)
        sizes: Any = {"rows": rows, "columns": columns, "splits": 1, "k_warps": k_warps}
        launch("nvfp4", x, nothing, nothing, nothing, nothing, **sizes)

    for rows, columns, x, k_warps in (
        (24, 64, torch.zeros(1, 64), 4),
        (32, 96, torch.zeros(1, 96), 4),
        (32, 320, torch.zeros(1, 320), WIDE),
        (32, 128, torch.zeros(1, 64), 4),
        (32, 64, torch.zeros(64, 2).T, 4),
    ):
        with pytest.raises(ValueError, match="a multiple of 16 rows"):
            ask(rows, columns, x=x, k_warps=k_warps)


def test_a_steady_product_has_one_shape_for_any_number_of_rows(folder: Path) -> None:
    x, w = torch.randn(300, 64), torch.randn(24, 64)
    shapes: list[int] = []

    class Seen(torch.Tensor):
        def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
            shapes.append(len(self))
            return self.as_subclass(torch.Tensor) @ other

    for rows in (1, 256, 300):
        found = steady_product(x[:rows].as_subclass(Seen), w).as_subclass(torch.Tensor)
        torch.testing.assert_close(found, x[:rows] @ w.T)
    assert shapes == [256] * 4
    steady, plain = load(folder, invariant=True), load(folder)
    for mine, theirs in zip(steady._trial(slice(None)), plain._trial(slice(None)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_recipes_say_which_products_there_may_be() -> None:
    assert recipe_kinds(read_recipe("nvfp4")) == {"bf16", "nvfp4"}
    assert recipe_kinds(read_recipe("bf16")) == {"bf16"}
    assert recipe_kinds(read_recipe("auto")) == {"bf16", "fp8", "nvfp4"}


def test_rounded_activations_are_refused(folder: Path) -> None:
    with pytest.raises(ModelFileError, match="activations = 'narrow'; on cuda weights meet 16-bit activations"):
        load(folder, Recipe("mine", (("*", "nvfp4"),), activations="narrow"))

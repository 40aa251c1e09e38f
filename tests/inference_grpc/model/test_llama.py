"""The logits are those of `transformers` on the same weights, and the same bits in any chunks and any company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.engine.transformers_model import load_transformers
from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.model import llama
from inference_grpc.model.attention import KEPT_BYTES
from inference_grpc.model.fbgemm import PackedWeight
from inference_grpc.model.linear import HalfProduct, Precision, make_product, rows_are_independent
from inference_grpc.model.llama import LlamaModel
from inference_grpc.model.load import load_model, open_checkpoint
from inference_grpc.model.memory import KvPool
from inference_grpc.model.norm import RmsNorm
from inference_grpc.model.resolve import EMBEDDED_MODEL, resolve_model
from tests.inference_grpc import tiny_model

PAGE = 16


def make_sequence(token_ids: list[int], first_page: int = 0) -> Sequence:
    sequence = Sequence(key=0, choice=0, prompt_ids=token_ids, sampling=SamplingParams(), seed=0, max_tokens=1)
    # Page ids out of order, as they are in use.
    sequence.page_ids = [first_page + page for page in range(-(-len(token_ids) // PAGE) - 1, -1, -1)]
    return sequence


def load(path: Path, precision: Precision) -> LlamaModel:
    opened = open_checkpoint(path)
    model = load_model(opened, name="m", vocabulary=opened.config.vocabulary, product=precision).model
    assert isinstance(model, LlamaModel)
    model.allocate(pages=200, page_tokens=PAGE)
    return model


def in_chunks(model: LlamaModel, sequence: Sequence, sizes: list[int]) -> torch.Tensor:
    """Logits of the last token, computed in chunks of these sizes and the rest."""
    start, total = 0, len(sequence.token_ids)
    for size in [*sizes, total]:
        count = min(size, total - start)
        if count:
            logits = model.forward(Batch([Chunk(sequence, start, count)]))
            start += count
    return logits[0]


def every_position(model: LlamaModel, token_ids: list[int]) -> torch.Tensor:
    """Logits after each token, one at a time."""
    rows = []
    for end in range(1, len(token_ids) + 1):
        sequence = make_sequence(token_ids)
        sequence.token_ids = token_ids[:end]
        rows.append(model.forward(Batch([Chunk(sequence, end - 1, 1)]))[0])
    return torch.stack(rows)


def reference_logits(path: Path, token_ids: list[int]) -> torch.Tensor:
    """`transformers` on the same weights, [tokens, vocabulary]."""
    with torch.inference_mode():
        logits: torch.Tensor = load_transformers(path)(torch.tensor([token_ids])).logits[0]
    return logits


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return np.random.default_rng(3).integers(0, len(tiny_model.vocabulary()[0]), 150).tolist()


@pytest.fixture(scope="module")
def models(tiny_path: Path) -> dict[Precision, LlamaModel]:
    return {"float16": load(tiny_path, "float16"), "float32": load(tiny_path, "float32")}


@pytest.mark.parametrize(
    "overrides",
    [{}, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}],
    ids=["plain", "linear rope scaling"],
)
def test_logits_equal_transformers(tmp_path: Path, token_ids: list[int], overrides: dict) -> None:
    weights = tiny_model.tensors()
    weights["output.weight"] = tiny_model.tensors(seed=9)["token_embd.weight"]
    path = tiny_model.write_gguf(tmp_path / "m.gguf", weights=weights, overrides=overrides)
    model, expected = load(path, "float32"), reference_logits(path, token_ids)
    for sizes in ([], [1], [7, 33, 1, 40], [16] * 9, [63, 2]):
        actual = in_chunks(model, make_sequence(token_ids), sizes)
        torch.testing.assert_close(actual, expected[-1], rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(every_position(model, token_ids), expected, rtol=1e-4, atol=2e-4)


def test_embedded_model_equals_transformers() -> None:
    _, path = resolve_model(EMBEDDED_MODEL)
    token_ids = np.random.default_rng(5).integers(20, 49_000, 90).tolist()
    expected = reference_logits(path, token_ids)[-1]
    exact = in_chunks(load(path, "float32"), make_sequence(token_ids), [17, 5])
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["float16", "float32"])
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 70), max_size=6), others=st.integers(0, 9), seed=st.integers(0, 99))
def test_bits_do_not_depend_on_chunks_or_neighbours(
    models: dict[Precision, LlamaModel],
    token_ids: list[int],
    precision: Precision,
    sizes: list[int],
    others: int,
    seed: int,
) -> None:
    model = models[precision]
    alone = in_chunks(model, make_sequence(token_ids), [])
    assert torch.equal(in_chunks(model, make_sequence(token_ids, 20), sizes), alone)

    generator = np.random.default_rng(seed)
    neighbours = [make_sequence(token_ids[: generator.integers(1, 140)], 40 + 10 * n) for n in range(others)]
    chunks = [Chunk(neighbour, 0, len(neighbour.token_ids)) for neighbour in neighbours]
    in_company = make_sequence(token_ids, 20)
    model.forward(Batch([*chunks, Chunk(in_company, 0, len(token_ids) - 1)]))
    decoding = [Chunk(other, len(other.token_ids) - 1, 1) for other in neighbours]
    place = int(generator.integers(0, others + 1))
    batch = Batch([*decoding[:place], Chunk(in_company, len(token_ids) - 1, 1), *decoding[place:]])
    assert torch.equal(model.forward(batch)[place], alone)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_the_default_product_are_independent_for_the_embedded_shapes(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for out_features, in_features in ((960, 576), (576, 576), (3072, 576), (576, 1536)):
            weight = torch.randn(out_features, in_features, generator=generator)
            assert rows_are_independent(make_product(weight, "float16"), in_features)
    finally:
        torch.set_num_threads(before)


def test_products_of_dependent_rows_are_found() -> None:
    assert not rows_are_independent(lambda x: x * x.shape[0], 8)
    assert isinstance(make_product(torch.ones(4, 8), "float16"), HalfProduct | PackedWeight)


def test_other_pages_stay_untouched_and_cleared_pages_are_zero(models: dict[Precision, LlamaModel]) -> None:
    model = models["float32"]
    model.clear_pages(range(150, 160))
    model.forward(Batch([Chunk(make_sequence([5] * 20, 150), 0, 20)]))
    assert model._pools[0].pages[150:152].abs().sum() > 0
    assert model._pools[0].pages[152:160].abs().sum() == 0
    model.clear_pages([150, 151])
    assert model._pools[1].pages[150:160].abs().sum() == 0


def test_page_sizes_that_do_not_fit_the_span_are_refused(tiny_path: Path) -> None:
    opened = open_checkpoint(tiny_path)
    model = load_model(opened, name="m", vocabulary=opened.config.vocabulary).model
    with pytest.raises(ValueError, match="page_tokens is 24"):
        model.allocate(pages=4, page_tokens=24, state_slots=0)


def test_spans_kept_from_step_to_step_hold_what_pages_hold(models: dict[Precision, LlamaModel]) -> None:
    """Texts that decode together, join, leave and cross spans; one that goes back to pages of its own; and a step of
    other texts between two of these."""
    model = models["float16"]
    generator = np.random.default_rng(4)
    texts = [generator.integers(0, 99, 140).tolist() for _ in range(4)]
    expected = [every_position(model, text) for text in texts]
    sequences = [make_sequence(text, 10 + 20 * number) for number, text in enumerate(texts)]
    ends = [20, 40, 61, 62]  # tokens known so far

    def step(members: list[int]) -> None:
        for member in members:
            sequences[member].token_ids = texts[member][: ends[member] + 1]
        batch = Batch([Chunk(sequences[member], ends[member], 1) for member in members])
        for member, row in zip(members, model.forward(batch), strict=True):
            assert torch.equal(row, expected[member][ends[member]])
            ends[member] += 1

    for member, end in enumerate(ends):
        sequences[member].token_ids = texts[member][:end]
        model.forward(Batch([Chunk(sequences[member], 0, end)]))
    for _ in range(4):
        step([0, 1, 2, 3])  # two of them cross into the next span
    step([2, 3])
    step([0, 1, 2, 3])
    ends[1] -= 2  # as if its last tokens had been taken back, and others came
    texts[1][ends[1]] += 1
    expected[1] = every_position(model, texts[1])
    sequences[0], before = make_sequence(texts[0], 120), sequences[0]
    sequences[0].token_ids = texts[0][: ends[0]]
    model.forward(Batch([Chunk(sequences[0], 0, ends[0])]))
    for _ in range(3):
        step([0, 1, 2, 3])
    assert before.page_ids != sequences[0].page_ids


def test_spans_beyond_the_bound_are_gathered_anew(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tiny_path, "float16")
    text = np.random.default_rng(6).integers(0, 99, 60).tolist()
    sequence = make_sequence(text)
    gathers = 0
    plain = KvPool.gather

    def gather(pool: KvPool, page_ids: torch.Tensor) -> torch.Tensor:
        nonlocal gathers
        gathers += 1
        return plain(pool, page_ids)

    monkeypatch.setattr(KvPool, "gather", gather)

    def decode(end: int) -> None:
        sequence.token_ids = text[:end]
        model.forward(Batch([Chunk(sequence, end - 1, 1)]))

    for bound, expected in ((KEPT_BYTES, model.config.layers), (0, 4 * model.config.layers)):
        monkeypatch.setattr(llama, "KEPT_BYTES", bound)
        model.forward(Batch([Chunk(make_sequence([5] * 3, 100), 0, 3)]))  # what was kept before is forgotten
        gathers = 0
        for end in (40, 41, 42, 43):
            decode(end)
        assert gathers == expected


def test_norms_have_the_bits_of_torch() -> None:
    generator = torch.Generator().manual_seed(2)
    for width, epsilon in ((576, 1e-5), (64, 1e-6), (7, 0.5)):
        x = torch.randn(9, 3, width, generator=generator) * torch.logspace(-20, 15, 9)[:, None, None]
        weight = torch.randn(width, generator=generator)
        assert torch.equal(
            RmsNorm(width, epsilon)(x, weight), torch.nn.functional.rms_norm(x, (width,), weight, epsilon)
        )

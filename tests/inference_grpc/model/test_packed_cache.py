"""Packed weights: the same bits as torch's own packing, and kept from one start to the next or not at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inference_grpc.config import ConfigError, EngineConfig, read_config
from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.model import fbgemm, packed_cache
from inference_grpc.model.linear import HalfProduct, make_product
from inference_grpc.model.load import Loaded, load_model, open_checkpoint
from inference_grpc.model.packed_cache import PackedCache
from inference_grpc.model.recipe import read_recipe
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.model.hybrids import make_sequence

pytestmark = pytest.mark.skipif(
    fbgemm.layout() is None, reason="weights are packed by torch here: this needs torch 2.13.0 on Linux and x86-64"
)
TOKENS = [7 + 31 * n % 240 for n in range(70)]
NARROW = (
    'activations = "narrow"\n[[rules]]\nmatch = "*.q_proj"\nformat = "nvfp4"\n[[rules]]\nmatch = "*"\nformat = "fp8"\n'
)


@pytest.fixture(autouse=True)
def one_thread_and_small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(packed_cache, "LEAST_BYTES", 0)


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", 2**24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny")


def load(path: Path, cache: PackedCache | None, recipe: str = "auto") -> Loaded:
    opened = open_checkpoint(path)
    return load_model(opened, name="m", vocabulary=260, recipe=read_recipe(recipe), cache=cache)


def logits_of(loaded: Loaded) -> torch.Tensor:
    loaded.model.allocate(pages=20, page_tokens=16, state_slots=2)
    return loaded.model.forward(Batch([Chunk(make_sequence(TOKENS), 0, len(TOKENS))]))


def kept_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "packed").iterdir()
    return path


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (32, 512), (45, 513), (96, 64), (200, 1100)])
def test_products_have_the_bits_of_torchs_own(out_features: int, in_features: int) -> None:
    weight = torch.randn(out_features, in_features) * 2.0 ** torch.randint(-30, 10, (out_features, in_features))
    ours, theirs = make_product(weight, "float16"), HalfProduct(weight)
    assert isinstance(ours, fbgemm.PackedWeight)
    for rows in (0, 1, 2, 13, 121, 130):
        x = torch.randn(rows, in_features)
        assert torch.equal(ours(x), theirs(x))
    strided = torch.randn(5, 2 * in_features)[:, ::2]
    assert torch.equal(ours(strided), theirs(strided.contiguous()))


def test_values_out_of_range_saturate_as_torch_has_it() -> None:
    assert torch.equal(
        fbgemm.pack(torch.tensor([[1e6, -1e6, 1.0]]))[::32], torch.tensor([65504.0, -65504.0, 1.0]).half()
    )


def test_what_does_not_fit_a_packed_weight_is_refused() -> None:
    product = make_product(torch.zeros(4, 3), "float16")
    for x in (torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.float64)):
        with pytest.raises(ValueError, match="cannot meet"):
            product(x)
    with pytest.raises(ValueError, match="no packed"):
        fbgemm.PackedWeight(torch.zeros(5, dtype=torch.float16), 4, 3)


def test_several_threads_leave_the_packing_to_torch() -> None:
    torch.set_num_threads(2)
    try:
        assert isinstance(make_product(torch.zeros(4, 3), "float16"), HalfProduct)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("recipe", ["auto", "fp8", "nvfp4", "narrow"])
def test_a_second_start_reads_what_was_kept_and_says_the_same(
    folder: Path, tmp_path: Path, cache: PackedCache, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recipe == "narrow":  # products that are stacked, since their activations are rounded in two ways
        (tmp_path / "narrow.toml").write_text(NARROW)
        recipe = str(tmp_path / "narrow.toml")
    plain, first = load(folder, None, recipe), load(folder, cache, recipe)
    # From here on nobody may look at the model's own weights.
    monkeypatch.setattr("inference_grpc.model.load.load_hybrid_weights", None)
    second = load(folder, cache, recipe)
    assert (second.model.precision, second.formats) == (plain.model.precision, plain.formats)
    expected = logits_of(plain)
    assert torch.equal(logits_of(first), expected)
    assert torch.equal(logits_of(second), expected)


def test_dense_models_are_kept_too(tiny_path: Path, cache: PackedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits_of(load(tiny_path, cache))
    monkeypatch.setattr("inference_grpc.model.load.load_weights", None)
    assert torch.equal(logits_of(load(tiny_path, cache)), expected)


def cut(content: bytes) -> bytes:
    return content[:-100]


def change(place: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (change(0), "another layout"),
        (change(8), "header is damaged"),
        (change(60), "header is damaged"),
        (change(-5000), "data is damaged"),
        (cut, "bytes, not"),
        (lambda content: content[:20], "header is damaged"),
        (lambda content: b"", "another layout"),
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(
    folder: Path,
    tmp_path: Path,
    cache: PackedCache,
    damage: Callable[[bytes], bytes],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    expected = logits_of(load(folder, cache))
    path = kept_file(tmp_path)
    content = path.read_bytes()
    path.write_bytes(damage(content))
    assert torch.equal(logits_of(load(folder, cache)), expected)
    assert f"packed_weights_ignored path={path}" in caplog.text
    assert reason in caplog.text
    assert kept_file(tmp_path).read_bytes() == content
    load(folder, cache)
    assert f"packed_weights_found path={path}" in caplog.text


def test_another_file_recipe_or_release_makes_another_entry(
    tmp_path: Path, cache: PackedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny(tmp_path / "model")
    load(folder, cache)
    load(folder, cache, "fp8")
    assert len(list((tmp_path / "packed").iterdir())) == 2
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(0, 0))
    load(folder, cache)
    assert len(list((tmp_path / "packed").iterdir())) == 3
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    load(folder, cache)
    assert len(list((tmp_path / "packed").iterdir())) == 4


def test_the_longest_unused_gives_way_and_too_much_is_not_kept(
    folder: Path, tmp_path: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    load(folder, cache)
    first = kept_file(tmp_path)
    os.utime(first, (1, 1))
    room_for_one = PackedCache(tmp_path / "packed", first.stat().st_size * 3 // 2)
    load(folder, room_for_one, "fp8")
    assert kept_file(tmp_path) != first
    load(folder, PackedCache(tmp_path / "none", 1000))
    assert "ENGINE_PACKED_MIB" in caplog.text
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_a_log_line(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file")
    expected = logits_of(load(folder, None))
    assert torch.equal(logits_of(load(folder, PackedCache(tmp_path / "taken", 2**24))), expected)
    assert "packed_weights_not_kept" in caplog.text


def test_the_folder_is_a_setting() -> None:
    assert EngineConfig().packed_folder == Path("var/engine/packed")
    assert read_config(["--packed-dir", "/elsewhere"], {}).packed_folder == Path("/elsewhere")
    assert read_config([], {"ENGINE_PACKED_MIB": "0"}).packed_mib == 0
    with pytest.raises(ConfigError, match="ENGINE_PACKED_MIB"):
        read_config([], {"ENGINE_PACKED_MIB": "-1"})

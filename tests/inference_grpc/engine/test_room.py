"""A start without enough memory says what would fit, and that does fit."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_grpc.config import ConfigError, EngineConfig
from inference_grpc.engine import load, load_backend
from inference_grpc.engine import room as room_module
from inference_grpc.engine.pools import pools_of
from inference_grpc.engine.room import free_bytes, refusal, weights_refusal
from inference_grpc.model.load import Opened, load_model, open_checkpoint
from inference_grpc.model.recipe import read_recipe
from inference_grpc.model.sizes import cache_size, weight_bytes
from inference_grpc.model.tiny import tiny_config
from inference_grpc.tools.__main__ import main

MIB = 2**20
SETTING = re.compile(r"ENGINE_(\w+)=(\d+)")


@pytest.fixture(scope="module")
def hybrid(hybrid_path: Path) -> Any:
    return load_model(open_checkpoint(hybrid_path), name="m", vocabulary=271).model


def suggested(config: EngineConfig, text: str) -> EngineConfig:
    """The settings after the semicolon."""
    found = SETTING.findall(text.partition(";")[2])
    return replace(config, **{name.lower(): int(value) for name, value in found})


def slots_of(config: EngineConfig, model: Any) -> int:
    return load._state_slots(config, model)


def test_what_fits_is_not_refused(hybrid: Any) -> None:
    config = EngineConfig(pages=100, max_sequences=2, checkpoint_mib=1)
    assert refusal(config, hybrid, pools_of(config, hybrid), slots_of(config, hybrid), None) is None
    assert refusal(config, hybrid, pools_of(config, hybrid), slots_of(config, hybrid), 2**40) is None


@pytest.mark.parametrize(("pages", "max_sequences", "free_mib"), [(100_000, 4, 64), (1000, 5000, 64), (5, 400, 3)])
def test_what_is_said_to_fit_does(hybrid: Any, pages: int, max_sequences: int, free_mib: int) -> None:
    config = EngineConfig(pages=pages, max_sequences=max_sequences, checkpoint_mib=1)
    text = refusal(config, hybrid, pools_of(config, hybrid), slots_of(config, hybrid), free_mib * MIB)
    assert text is not None
    assert f"{free_mib} MiB are free" in text
    better = suggested(config, text)
    assert better != config
    assert refusal(better, hybrid, pools_of(better, hybrid), slots_of(better, hybrid), free_mib * MIB) is None


def test_nothing_is_promised_where_nothing_fits(hybrid: Any) -> None:
    config = EngineConfig(pages=100, max_sequences=2, checkpoint_mib=1)
    text = refusal(config, hybrid, pools_of(config, hybrid), slots_of(config, hybrid), 50_000)
    assert text is not None
    assert text.endswith("not even one sequence fits.")


def test_a_start_without_room_is_refused(hybrid_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "free_bytes", lambda device: 8 * MIB)
    with pytest.raises(ConfigError, match=r"no memory for the cache: .* 8 MiB are free; ENGINE_PAGES=\d+ would fit"):
        load_backend(EngineConfig(model=str(hybrid_path), pages=10_000, checkpoint_mib=1))


def test_free_memory_is_what_system_and_container_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    monkeypatch.setattr(room_module, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(room_module, "_GROUP", tmp_path)
    assert free_bytes("cpu") == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert free_bytes("cpu") == 5000 * 1024
    (tmp_path / "memory.max").write_text("4000\n")
    assert free_bytes("cpu") == 3000
    for file in tmp_path.iterdir():
        file.unlink()
    assert free_bytes("cpu") is None


def write_headers(folder: Path, content: dict[str, Any]) -> Path:
    """A folder whose tensors of a 27B size are holes of a sparse file: only headers can be read in time."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content))
    header, place = {}, 0
    for name, shape in big_shapes(content).items():
        end = place + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + place)
    return folder


def big_shapes(content: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner, vocabulary = content["hidden_size"], content["intermediate_size"], content["vocab_size"]
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "lm_head.weight": [vocabulary, hidden]}
    for number in range(content["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        shapes |= {f"{prefix}mlp.{part}_proj.weight": [inner, hidden] for part in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = [hidden, inner]
        if number % 4 == 3:
            rows = {"q_proj": 12288, "k_proj": 1024, "v_proj": 1024}
            shapes |= {f"{prefix}self_attn.{part}.weight": [count, hidden] for part, count in rows.items()}
            shapes[f"{prefix}self_attn.o_proj.weight"] = [hidden, 6144]
        else:
            rows = {"in_proj_qkv": 10240, "in_proj_z": 6144, "in_proj_b": 48, "in_proj_a": 48}
            shapes |= {f"{prefix}linear_attn.{part}.weight": [count, hidden] for part, count in rows.items()}
            shapes[f"{prefix}linear_attn.out_proj.weight"] = [hidden, 6144]
    return shapes


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Of the 27B size, whole."""
    content = tiny_config(
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=64,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=248_320,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        mtp_num_hidden_layers=0,
    )
    return open_checkpoint(write_headers(tmp_path_factory.mktemp("big") / "m", content))


GPU = EngineConfig(device="cuda", max_sequences=8, page_tokens=64, pages=2000)


@pytest.mark.parametrize(
    ("free_gib", "precision", "said"),
    [
        (80, "auto", None),
        (40, "auto", "ENGINE_PRECISION=fp8 takes about 280"),
        (24, "bf16", "ENGINE_PRECISION=nvfp4 takes about 162"),
        (24, "fp8", "ENGINE_PRECISION=nvfp4 takes about 162"),
        (24, "nvfp4", None),
        (12, "auto", "even ENGINE_PRECISION=nvfp4 takes about 162"),
    ],
)
def test_weights_too_large_for_a_gpu_are_refused_before_they_are_read(
    big: Opened, free_gib: int, precision: str, said: str | None
) -> None:
    config = replace(GPU, precision=precision)
    text = weights_refusal(config, big, read_recipe(precision), free_gib * 2**30)
    if said is None:
        assert text is None
        return
    assert text is not None
    assert f"{free_gib * 1024} MiB are free" in text
    assert said in text
    if "would fit" in text:
        found = re.search(r"ENGINE_PRECISION=(\w+) takes", text)
        assert found is not None
        better = replace(suggested(config, text), precision=found[1])
        assert weights_refusal(better, big, read_recipe(found[1]), free_gib * 2**30) is None
        # What is promised does fit: weights, pages and states together.
        size = cache_size(big.config, "fp8", "cuda")
        taken = weight_bytes(big, read_recipe(found[1]), "cuda") + (better.pages + 1) * 64 * size.token_bytes
        assert taken + (better.max_sequences + 2) * size.state_bytes <= free_gib * 2**30
        each = re.search(r"(\d+) sequences of (\d+) tokens each", text)
        assert each is not None
        assert int(each[1]) == better.max_sequences
        assert int(each[2]) * better.max_sequences <= better.pages * 64


def test_sizes_by_headers_are_those_of_the_loaded_model(hybrid_path: Path, hybrid: Any, tmp_path: Path) -> None:
    opened = open_checkpoint(hybrid_path)
    size = cache_size(opened.config, "float32", "cpu")
    assert (size.token_bytes, size.state_bytes) == (hybrid.page_token_bytes, hybrid.state_bytes)
    narrow, folder = tmp_path / "n.gguf", tmp_path / "nvfp4"
    assert main(["quantize", str(hybrid_path), str(folder), "--recipe", "nvfp4"]) == 0
    assert main(["export-gguf", str(folder), str(narrow)]) == 0
    kept = read_recipe("auto")
    counts = {path: weight_bytes(open_checkpoint(path), kept, "cuda") for path in (hybrid_path, folder, narrow)}
    assert counts[folder] == counts[narrow] < counts[hybrid_path]
    assert weight_bytes(opened, read_recipe("nvfp4"), "cuda") == counts[folder]


def test_a_cpu_without_room_for_the_weights_says_so(hybrid_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "free_bytes", lambda device: 100_000)
    with pytest.raises(ConfigError, match=r"no memory for the weights of .*no precision takes less here: use a small"):
        load_backend(EngineConfig(model=str(hybrid_path)))


def test_memory_that_runs_out_while_weights_load_is_a_refusal(
    hybrid_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs_out(*given: object, **settings: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB")

    monkeypatch.setattr(load, "load_model", runs_out)
    with pytest.raises(ConfigError, match=r"then it ran out \(Tried to allocate 2 GiB\); make room"):
        load_backend(EngineConfig(model=str(hybrid_path)))

"""A start without enough memory says what would fit, and that does fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_grpc.config import ConfigError, EngineConfig
from inference_grpc.engine import load, load_backend
from inference_grpc.engine import room as room_module
from inference_grpc.engine.room import free_bytes, refusal
from inference_grpc.model.load import load_model, open_checkpoint

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
    assert refusal(config, hybrid, slots_of(config, hybrid), None) is None
    assert refusal(config, hybrid, slots_of(config, hybrid), 2**40) is None


@pytest.mark.parametrize(("pages", "max_sequences", "free_mib"), [(100_000, 4, 64), (1000, 5000, 64), (5, 400, 3)])
def test_what_is_said_to_fit_does(hybrid: Any, pages: int, max_sequences: int, free_mib: int) -> None:
    config = EngineConfig(pages=pages, max_sequences=max_sequences, checkpoint_mib=1)
    text = refusal(config, hybrid, slots_of(config, hybrid), free_mib * MIB)
    assert text is not None
    assert f"{free_mib} MiB are free" in text
    better = suggested(config, text)
    assert better != config
    assert refusal(better, hybrid, slots_of(better, hybrid), free_mib * MIB) is None


def test_nothing_is_promised_where_nothing_fits(hybrid: Any) -> None:
    config = EngineConfig(pages=100, max_sequences=2, checkpoint_mib=1)
    text = refusal(config, hybrid, slots_of(config, hybrid), 50_000)
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

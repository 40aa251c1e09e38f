"""The server started from the command line, from every container, streams to a client of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.test_server_start import WAYS as WAYS_ON_GPU
from tests.inference_grpc.starting import TOKENS, WAYS, started, stream_twice, write_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("way", ["tiny-random", "gguf nvfp4"])
def test_a_server_started_by_hand_streams(models: Path, tmp_path: Path, way: str) -> None:
    with started([*WAYS[way](models), "--checkpoint-mib", "1"], tmp_path / "journal") as address:
        first, again = stream_twice(address)
    assert first.text
    assert first.deltas > 1
    assert first.completion_tokens == TOKENS
    assert (first.text, first.prompt_tokens) == (again.text, again.prompt_tokens)


def test_a_gpu_is_started_in_the_same_ways() -> None:
    assert set(WAYS) == set(WAYS_ON_GPU)


def test_a_model_that_is_not_there_ends_the_start_by_name(tmp_path: Path) -> None:
    starting = started(["--model", str(tmp_path / "none.gguf")], tmp_path / "journal")
    with pytest.raises(RuntimeError, match=r"The engine does not start\. ENGINE_MODEL"), starting:
        raise AssertionError("it serves what is not there")

"""The server started on a GPU from the command line, from every container, streams to a client of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
NEEDED = (
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "uvloop",
    "prometheus_client",
    "tokenizers",
    "gguf",
    "llguidance",
    "jinja2",
)
WAYS = ("tiny-random", "folder", "gguf", "folder nvfp4", "gguf nvfp4", "folder as fp8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.inference_grpc.starting import write_models

    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def packages() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the server needs {', '.join(missing)}: pip install -e '.[engine]'")


@pytest.mark.parametrize("way", WAYS)
def test_a_server_started_on_a_gpu_streams(request: pytest.FixtureRequest, tmp_path: Path, way: str) -> None:
    from tests.inference_grpc import starting

    folder = request.getfixturevalue("models")
    arguments = [*starting.WAYS[way](folder), "--device", "cuda", "--page-tokens", "64", "--batch-invariant", "1"]
    with starting.started(arguments, tmp_path / "journal") as address:
        first, again = starting.stream_twice(address)
    assert first.text
    assert first.deltas > 1
    assert first.completion_tokens == starting.TOKENS
    assert (first.text, first.prompt_tokens) == (again.text, again.prompt_tokens)

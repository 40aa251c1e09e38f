"""Models for the engine's tests: a tiny random one, and the embedded one loaded once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_grpc.config import EngineConfig
from inference_grpc.engine import load_backend
from inference_grpc.model.tiny import write_tiny
from tests.inference_grpc.running import Client
from tests.inference_grpc.tiny_model import write_gguf

MakeClient = Callable[..., Client]


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def hybrid_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("hybrid") / "tiny-hybrid")


@pytest.fixture
def make_client(tiny_path: Path) -> Iterator[MakeClient]:
    """A started backend of the tiny model; keyword arguments are those of EngineConfig. After the test every page is
    accounted for and none is held."""
    clients: list[Client] = []

    def make(**settings: Any) -> Client:
        settings = {"model": str(tiny_path), "pages": 64, "page_tokens": 16, "prefill_tokens": 64} | settings
        clients.append(Client(load_backend(EngineConfig(**settings))))
        return clients[-1]

    yield make
    for client in clients:
        client.backend.close()
        client.backend.engine.check_integrity()
        assert client.backend.engine.cache.pool.held == 0
        assert client.backend.engine.cache.stale.pool.held == 0
        assert client.backend.engine.cache.slots.held == 0
        assert client.backend.engine.cache.host.held == 0


@pytest.fixture(scope="session")
def embedded() -> Iterator[Client]:
    """The embedded model, served."""
    client = Client(load_backend(EngineConfig()))
    yield client
    client.backend.close()
    client.backend.engine.check_integrity()

"""The torch engine: continuous batching over a paged cache. README.md tells how a step runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference_grpc.config import EngineConfig
    from inference_grpc.engine.backend import TorchBackend


def load_backend(config: EngineConfig) -> TorchBackend:
    """Load the model and everything around it. Raises `ConfigError` with what is wrong and the way out."""
    from inference_grpc.engine.load import load  # torch comes in here, not with the package

    return load(config)

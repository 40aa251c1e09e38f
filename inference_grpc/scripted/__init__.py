"""The scripted engine: the same contract as the real one; exact answers, timings and faults to order. See README.md."""

from __future__ import annotations

from inference_grpc.config import EngineConfig
from inference_grpc.scripted.backend import ScriptedBackend
from inference_grpc.scripted.scenario import read_scenario


def load_backend(config: EngineConfig) -> ScriptedBackend:
    """Raises `ConfigError` when the scenario file is not understood."""
    return ScriptedBackend(config, read_scenario(config.scenario))

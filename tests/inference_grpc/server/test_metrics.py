"""What a scrape shows of what the backend says of itself."""

from __future__ import annotations

from prometheus_client import generate_latest

from inference_grpc.core.backend import BackendInfo
from inference_grpc.server.metrics import EngineMetrics


def test_values_cut_to_fp8_are_a_counter_by_kind() -> None:
    info = BackendInfo("tiny", 64, 2, saturated={"activations": 0, "keys_values": 7})
    text = generate_latest(EngineMetrics(lambda: info).registry).decode()
    assert 'engine_fp8_saturated_values_total{kind="keys_values",model_name="tiny"} 7.0' in text
    assert 'engine_fp8_saturated_values_total{kind="activations",model_name="tiny"} 0.0' in text

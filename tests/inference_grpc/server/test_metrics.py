"""What a scrape shows of what the backend says of itself."""

from __future__ import annotations

from prometheus_client import generate_latest

from inference_grpc.core.backend import BackendInfo
from inference_grpc.server.metrics import EngineMetrics


def test_a_staged_cache_is_as_full_as_its_shorter_kind_of_pages() -> None:
    def told(**pages: int) -> dict[str, float]:
        info = BackendInfo("tiny", 64, 2, **pages)
        samples = [sample for metric in EngineMetrics(lambda: info).collect() for sample in metric.samples]
        return {sample.name.removeprefix("engine_kv_cache_"): sample.value for sample in samples}

    two = told(pages_total=10, pages_free=6, three_bit_pages_total=20, three_bit_pages_free=2, three_bit_pages_held=9)
    assert (two["usage_perc"], two["pages"], two["pages_free"]) == (0.9, 10, 6)
    assert (two["three_bit_pages"], two["three_bit_pages_free"], two["three_bit_pages_held"]) == (20, 2, 9)
    two = told(pages_total=10, pages_free=1, three_bit_pages_total=20, three_bit_pages_free=18)
    assert two["usage_perc"] == 0.9
    one = told(pages_total=10, pages_free=6)
    assert (one["usage_perc"], one["three_bit_pages"], one["three_bit_pages_free"]) == (0.4, 0, 0)


def test_values_cut_to_fp8_are_a_counter_by_kind() -> None:
    info = BackendInfo("tiny", 64, 2, saturated={"activations": 0, "keys_values": 7})
    text = generate_latest(EngineMetrics(lambda: info).registry).decode()
    assert 'engine_fp8_saturated_values_total{kind="keys_values",model_name="tiny"} 7.0' in text
    assert 'engine_fp8_saturated_values_total{kind="activations",model_name="tiny"} 0.0' in text

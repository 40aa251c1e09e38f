"""Pools: FP8 keys and values saturate instead of turning into NaN, copies are whole, other places stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.random_model import config_27b
from inference_grpc.core.batch import Move
from inference_grpc.model.cuda.memory import DeviceMemory, write_rows
from inference_grpc.model.llama import LlamaModel
from inference_grpc.model.load import load_model, open_checkpoint
from inference_grpc.model.memory import KvFormat, KvPool, StatePool
from inference_grpc.model.quantization import round_activations_fp8, round_activations_nvfp4
from inference_grpc.model.recipe import read_recipe
from inference_grpc.model.saturation import ACTIVATIONS, KEYS_VALUES, Saturated
from kernels.paged_attention.cache import PageMemory


def test_fp8_values_saturate_and_others_round_to_e4m3() -> None:
    pool = KvPool(pages=2, page_tokens=2, values=4, stored="fp8")
    pool.write(torch.tensor([1, 2]), torch.tensor([[1e6, -1e6, 0.3, 448.0], [1.0, -2.0, 0.0, 17.0]]))
    rows = pool.gather(torch.tensor([0, 1])).flatten(0, 1)
    assert rows[1].tolist() == [448.0, -448.0, 0.3125, 448.0]
    assert rows[2].tolist() == [1.0, -2.0, 0.0, 16.0]
    assert rows[0].tolist() == rows[3].tolist() == [0.0] * 4


def test_values_beyond_e4m3_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "fp8_saturated" in record.getMessage()]

    saturated = Saturated("trial")
    saturated.see(torch.tensor([448.0, -448.0, 449.0, -1e9, 0.0]), 448.0)
    saturated.see(torch.ones(3), 448.0)
    saturated.add(17)  # not yet ten times as many as were told
    assert saturated.count == 19
    assert told() == ["fp8_saturated kind=trial values=2: they were cut to the format's range"]
    saturated.add(1)
    assert len(told()) == 2

    pool = KvPool(pages=2, page_tokens=2, values=4, stored="fp8")
    before = KEYS_VALUES.count, ACTIVATIONS.count
    pool.write(torch.tensor([1, 2]), torch.tensor([[1e6, -1e6, 0.3, 448.0], [1.0, -2.0, 0.0, 17.0]]))
    round_activations_fp8(torch.tensor([[10.0, 4.48, 0.0]]), scale=0.01)
    round_activations_fp8(torch.tensor([[1e30, 4.48, 0.0]]), scale=None)  # by its own maximum: nothing is beyond it
    round_activations_nvfp4(torch.full((1, 16), 30.0), multiplier=0.01)
    assert (KEYS_VALUES.count, ACTIVATIONS.count) == (before[0] + 2, before[1] + 1 + 16)


def test_rows_of_prompts_beyond_e4m3_are_counted_where_a_gpu_runs_them() -> None:
    sizes = {"pages": 2, "page_tokens": 4, "slots": 1, "cache": torch.float8_e4m3fn, "ring": torch.float32}
    memory = DeviceMemory(config_27b(layers=4), device=torch.device("cpu"), **sizes)
    layer = memory.layers[3]
    assert isinstance(layer, PageMemory)
    rows = torch.zeros(2, 4, 256)
    rows[0, 1, 7], rows[1, 3, 255] = 600.0, -460.0
    before = KEYS_VALUES.count
    pages, offsets = torch.tensor([1, 1]), torch.tensor([0, 3])
    write_rows(layer.keys, pages, offsets, rows)
    assert layer.keys[1, 1, 0, 7].float() == 448.0
    assert layer.keys[1, 3, 3, 255].float() == -448.0
    memory.count_saturated(pages, offsets)  # begins to fetch the count
    assert KEYS_VALUES.count == before
    for _ in "ab":
        memory.count_saturated(pages[:0], offsets[:0])
    assert KEYS_VALUES.count == before + 2


def test_pages_and_slots_are_copied_whole() -> None:
    pool = KvPool(pages=3, page_tokens=2, values=2)
    pool.write(torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    pool.move(Move("page", 0, 2))
    assert torch.equal(pool.pages[2], pool.pages[0])
    assert not pool.pages[1].any()
    states = StatePool(slots=2, heads=1, key_size=2, value_size=2, conv_inputs=3, channels=2)
    states.state[0], states.conv[0] = 5.0, 6.0
    states.move(Move("state", 0, 1))
    assert torch.equal(states.state[1], states.state[0])
    assert torch.equal(states.conv[1], states.conv[0])
    assert not states.state[2].any()


def test_rounded_activations_depend_on_their_own_row_only() -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    x[2] = 0.0
    for rounded in (
        lambda rows: round_activations_fp8(rows, None),
        lambda rows: round_activations_fp8(rows, 0.01),
        lambda rows: round_activations_nvfp4(rows, None),
        lambda rows: round_activations_nvfp4(rows, 2.0**-10),
    ):
        whole = rounded(x)
        assert not whole[2].any()
        assert all(torch.equal(rounded(x[n : n + 1])[0], whole[n]) for n in range(5))
        assert 0 < (whole - x).norm() / x.norm() < 0.15


@pytest.mark.parametrize("stored", ["float32", "fp8"])
def test_places_go_to_host_memory_and_come_back_elsewhere(stored: KvFormat) -> None:
    pool = KvPool(pages=3, page_tokens=2, values=4, stored=stored, host_pages=2)
    pool.write(torch.tensor([2, 3]), torch.tensor([[1.0, 2.0, -3.0, 4.0], [0.5, 0.0, 8.0, -1.0]]))
    written = pool.pages[1].clone()
    pool.move(Move("page", 1, 1, "to_host"))
    pool.clear([1])
    pool.move(Move("page", 1, 2, "from_host"))
    assert torch.equal(pool.pages[2], written)
    assert not pool.pages[1].any()
    states = StatePool(slots=2, heads=1, key_size=2, value_size=2, conv_inputs=3, channels=2, host_states=1)
    states.state[0], states.conv[0] = 5.0, 6.0
    for move in (Move("state", 0, 0, "to_host"), Move("state", 0, 2, "from_host")):
        states.move(move)
    assert torch.equal(states.state[2], states.state[0])
    assert torch.equal(states.conv[2], states.conv[0])


def test_places_beyond_32_bits_are_their_own() -> None:
    """4 GiB of values that cost no memory until they are written: an index that wraps would hit the first page."""
    pages = 2**32 // (64 * 1024) + 2
    pool = KvPool(pages=pages, page_tokens=64, values=1024, stored="fp8")
    last, row = pages - 1, torch.full((1, 1024), 2.0)
    pool.write(torch.tensor([last * 64 + 63]), row)
    assert torch.equal(pool.gather(torch.tensor([last]))[0, 63], row[0])
    assert not pool.pages[:2].any()
    pool.move(Move("page", last, last - 1))
    assert torch.equal(pool.gather(torch.tensor([last - 1]))[0, 63], row[0])
    pool.clear([last])
    assert not pool.pages[last].any()


def test_a_dense_model_keeps_keys_as_its_recipe_says(tiny_path: Path) -> None:
    opened = open_checkpoint(tiny_path)
    model = load_model(opened, name="m", vocabulary=opened.config.vocabulary, recipe=read_recipe("fp8")).model
    assert isinstance(model, LlamaModel)
    model.allocate(pages=2, page_tokens=16)
    assert {pool.is_fp8 for pool in model._pools} == {True}
    assert sum(pool.pages[0].nbytes for pool in model._pools) == 16 * model.page_token_bytes

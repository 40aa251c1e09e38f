"""Pools: FP8 keys and values saturate instead of turning into NaN, copies are whole, other places stay as they were."""

from __future__ import annotations

import torch

from inference_grpc.model.memory import KvPool, StatePool
from inference_grpc.model.quantization import round_activations_fp8, round_activations_nvfp4


def test_fp8_values_saturate_and_others_round_to_e4m3() -> None:
    pool = KvPool(pages=2, page_tokens=2, values=4, stored="fp8")
    pool.write(torch.tensor([1, 2]), torch.tensor([[1e6, -1e6, 0.3, 448.0], [1.0, -2.0, 0.0, 17.0]]))
    rows = pool.gather(torch.tensor([0, 1])).flatten(0, 1)
    assert rows[1].tolist() == [448.0, -448.0, 0.3125, 448.0]
    assert rows[2].tolist() == [1.0, -2.0, 0.0, 16.0]
    assert rows[0].tolist() == rows[3].tolist() == [0.0] * 4


def test_pages_and_slots_are_copied_whole() -> None:
    pool = KvPool(pages=3, page_tokens=2, values=2)
    pool.write(torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    pool.copy(0, 2)
    assert torch.equal(pool.pages[2], pool.pages[0])
    assert not pool.pages[1].any()
    states = StatePool(slots=2, heads=1, key_size=2, value_size=2, conv_inputs=3, channels=2)
    states.state[0], states.conv[0] = 5.0, 6.0
    states.copy(0, 1)
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

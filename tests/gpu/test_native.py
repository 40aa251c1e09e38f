"""The CUDA C++ kernels against the plain forms, over odd sizes and poisoned outputs, and their promises of equal
bits."""

from __future__ import annotations

import pytest
import torch

from kernels.testing import assert_close, assert_same_bits, poisoned

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def random_nvfp4(n, k):
    from kernels.nvfp4.format import Nvfp4Matrix

    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=DEVICE)
    scales = torch.randint(1, 127, (n, k // 16), dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn)
    return Nvfp4Matrix(codes, scales, torch.rand(n, device=DEVICE) * 1e-4 + 1e-4)


def exact(matrix):
    from kernels.nvfp4.reference import unscaled

    return unscaled(matrix).double() * matrix.multiplier.double()[:, None]


def partial_sums(x, packed, splits, k_warps):
    from kernels.native.gemm import launch

    y = poisoned(splits, x.shape[0], packed.rows, device=DEVICE)
    sizes = {"rows": packed.rows, "columns": packed.columns, "splits": splits, "k_warps": k_warps}
    launch("nvfp4", x, packed.codes, packed.scales, packed.multiplier, y, **sizes)
    return y


@pytest.mark.parametrize(("n", "k"), [(16, 64), (528, 2048), (4176, 5120), (5120, 1088)])
@pytest.mark.parametrize("m", [1, 3, 8, 9, 16, 17, 31, 32])
def test_nvfp4_stream_product(m, n, k):
    from kernels.native.gemm import least_splits
    from kernels.nvfp4.pack import pack

    matrix = random_nvfp4(n, k)
    packed, x = pack(matrix.codes, matrix.scales, matrix.multiplier), torch.randn(m, k, device=DEVICE).bfloat16()
    expected = x.double() @ exact(matrix).T
    for splits in {least_splits("nvfp4", k, m), 4}:
        if splits < least_splits("nvfp4", k, m) or splits > k // 64:
            continue
        for k_warps in (16, 8, 4) if m <= 8 else (8, 4) if m <= 16 else (4,):
            y = partial_sums(x, packed, splits, k_warps)
            assert_close(y.sum(0), expected, relative=3e-6, what=f"{splits} parts, {k_warps} warps along K")


@pytest.mark.parametrize(("n", "k"), [(16, 256), (528, 2048), (4176, 5120), (5120, 768)])
@pytest.mark.parametrize("m", [1, 8, 9, 31, 33, 64, 65, 127, 128])
def test_nvfp4_wide_product(m, n, k):
    from kernels.native.gemm import WIDE, usual_parts
    from kernels.nvfp4.pack import pack

    matrix = random_nvfp4(n, k)
    packed, x = pack(matrix.codes, matrix.scales, matrix.multiplier), torch.randn(m, k, device=DEVICE).bfloat16()
    expected = x.double() @ exact(matrix).T
    for splits in {1, 3, usual_parts(n, k)}:
        assert_close(partial_sums(x, packed, splits, WIDE).sum(0), expected, relative=6e-6, what=f"{splits} parts")


@pytest.mark.parametrize("m", [1, 8, 32, 33, 128, 200])
def test_nvfp4_outputs(m):
    from kernels.nvfp4.linear import stream
    from kernels.nvfp4.pack import pack

    matrix = random_nvfp4(512, 1024)
    x = torch.randn(m, 1024, device=DEVICE).bfloat16() * 0.03
    expected = x.double() @ exact(matrix).T
    assert_close(stream(x, pack(matrix.codes, matrix.scales, matrix.multiplier)), expected, relative=6e-3)
    gate, up = expected.chunk(2, dim=1)
    paired = pack(matrix.codes, matrix.scales, matrix.multiplier, pairs=True)
    assert_close(stream(x, paired, output="silu_mul"), torch.nn.functional.silu(gate) * up, relative=1.2e-2)


def test_packed_weights_come_back_exactly():
    from kernels.native.gemm import dequantize
    from kernels.nvfp4.pack import pack
    from kernels.nvfp4.reference import unscaled

    matrix = random_nvfp4(48, 192)
    packed = pack(matrix.codes, matrix.scales, matrix.multiplier)
    w = poisoned(48, 192, dtype=torch.bfloat16, device=DEVICE)
    dequantize(packed.codes, packed.scales, w)
    assert_close(w, unscaled(matrix), relative=0.0)


def test_rows_do_not_depend_on_their_neighbours():
    from kernels.nvfp4.pack import pack

    matrix = random_nvfp4(512, 5120)
    packed, x = pack(matrix.codes, matrix.scales, matrix.multiplier), torch.randn(128, 5120, device=DEVICE).bfloat16()
    for k_warps in (4, 0):  # stream_gemm, wide_gemm
        together = partial_sums(x, packed, 4, k_warps)
        for rows in (1, 4, 8, 11, 16, 32, 50):
            alone = partial_sums(x[:rows], packed, 4, k_warps)
            assert_same_bits(
                alone, together[:, :rows].contiguous(), what=f"{rows} of 128 rows, {k_warps} warps along K"
            )


def test_a_deferred_norm_equals_a_norm_before():
    from kernels.native.gemm import DeferredNorm
    from kernels.nvfp4.linear import stream
    from kernels.nvfp4.pack import pack

    matrix = random_nvfp4(256, 1024)
    packed = pack(matrix.codes, matrix.scales, matrix.multiplier)
    x = torch.randn(5, 1024, device=DEVICE).bfloat16()
    squares = x.double().square().unflatten(1, (4, 256)).sum(-1).float()
    y = stream(x, packed, output="float", norm=DeferredNorm(squares, 1024)).sum(0)
    expected = x.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6) @ exact(matrix).T
    assert_close(y, expected, relative=3e-6)


@pytest.mark.parametrize("m", [1, 8, 13, 32, 128])
def test_fp8_stream_product(m):
    from kernels.fp8.linear import linear
    from kernels.fp8.pack import pack
    from kernels.fp8.reference import linear as expected
    from kernels.fp8.reference import quantize

    matrix, x = quantize(torch.randn(1040, 1088, device=DEVICE)), torch.randn(m, 1088, device=DEVICE).bfloat16()
    assert_close(linear(x, pack(matrix.values, matrix.multiplier)), expected(x, matrix), relative=4e-3)


def gdn(batch, rows, heads=48, key_heads=16):
    channels = (2 * key_heads + heads) * 128
    slots = batch * (rows + 1)
    tensors = {
        "state": torch.randn(slots, heads, 128, 128, device=DEVICE) * 0.1,
        "state_in": torch.arange(batch, device=DEVICE),
        "state_out": torch.arange(batch, slots, device=DEVICE).view(batch, rows),
        "conv": torch.randn(batch, 8, channels, device=DEVICE).bfloat16(),
        "conv_slot": torch.arange(batch, device=DEVICE).flip(0).contiguous(),
        "positions": torch.randint(0, 200000, (batch,), device=DEVICE),
        "conv_weight": torch.randn(4, channels, device=DEVICE) * 0.3,
        "a_log": torch.rand(heads, device=DEVICE),
        "dt_bias": torch.randn(heads, device=DEVICE),
        "norm_weight": torch.rand(128, device=DEVICE) + 0.5,
    }
    return torch.randn(batch, rows, channels + heads * 128 + 2 * heads, device=DEVICE), tensors


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 1), (9, 1), (2, 4)])
def test_fused_delta_step(batch, rows):
    from kernels.gated_delta_rule.reference import decode_step as expected
    from kernels.gated_delta_rule.step import decode_step

    mixed, tensors = gdn(batch, rows)
    mine = {k: v.clone() for k, v in tensors.items()}
    wide = {k: v.double() if v.is_floating_point() and k != "conv" else v.clone() for k, v in tensors.items()}
    out = poisoned(batch, rows, 48 * 128, dtype=torch.bfloat16, device=DEVICE)
    decode_step(mixed, **mine, key_heads=16, out=out)
    assert_close(out, expected(mixed.double(), **wide, key_heads=16), relative=4e-3)
    assert_close(mine["state"], wide["state"], relative=1e-6)
    assert_same_bits(mine["conv"], wide["conv"])


def test_fused_delta_step_adds_parts_and_leaves_states_that_are_not_kept():
    from kernels.gated_delta_rule.step import decode_step

    mixed, tensors = gdn(3, 1)
    mixed = mixed.bfloat16().float()  # few bits, so that every sum of parts is exact
    whole = {k: v.clone() for k, v in tensors.items()}
    out = decode_step(mixed, **whole, key_heads=16)
    for shares in ((0.5, 0.5), (0.5, 0.25, 0.25), (0.25, 0.25, 0.25, 0.25)):
        mine = {k: v.clone() for k, v in tensors.items()}
        mine["state_out"][1] = -1
        parts = torch.stack([mixed * share for share in shares])
        assert_same_bits(decode_step(parts, **mine, key_heads=16), out, what=f"{len(shares)} parts")
        assert_same_bits(mine["state"][[3, 5]], whole["state"][[3, 5]])
        assert_same_bits(mine["state"][[0, 1, 2, 4]], tensors["state"][[0, 1, 2, 4]])


def test_verified_rows_have_the_bits_of_plain_decoding():
    from kernels.gated_delta_rule.step import decode_step

    mixed, tensors = gdn(2, 4)
    together = {k: v.clone() for k, v in tensors.items()}
    out = decode_step(mixed, **together, key_heads=16)
    alone = {k: v.clone() for k, v in tensors.items()}
    current = alone.pop("state_in"), alone.pop("state_out"), alone.pop("positions")
    slot = current[0]
    for t in range(4):
        target = current[1][:, t : t + 1].contiguous()
        y = decode_step(
            mixed[:, t : t + 1].contiguous(),
            **alone,
            state_in=slot,
            state_out=target,
            positions=current[2] + t,
            key_heads=16,
        )
        assert_same_bits(y[:, 0], out[:, t].contiguous(), what=f"row {t}")
        slot = target[:, 0].contiguous()
    assert_same_bits(alone["state"], together["state"])
    assert_same_bits(alone["conv"], together["conv"])

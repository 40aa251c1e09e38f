"""NVFP4: the format, its conventions, quantisation, packing, and the two products."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kernels.nvfp4 import format as f
from kernels.nvfp4 import pack as p
from kernels.nvfp4 import reference as r
from kernels.testing import assert_close, assert_same_bits


def every_product() -> f.Nvfp4Matrix:
    """All sixteen codes times all 127 finite positive scales, zero included."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(128, 4)
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.cat([scales.view(torch.uint8), torch.tensor([0], dtype=torch.uint8)]).view(torch.float8_e4m3fn)
    return f.Nvfp4Matrix(
        f.pack_nibbles(codes),
        scales[:, None].view(torch.uint8).repeat(1, 4).view(torch.float8_e4m3fn),
        torch.full((128,), 0.5),
    )


def test_every_code_times_every_scale_is_exact_in_sixteen_bits():
    matrix = every_product()
    wide = r.unscaled(matrix, torch.float64)
    assert_close(r.unscaled(matrix, torch.bfloat16).double(), wide, relative=0.0)
    assert_close(r.unscaled(matrix, torch.float16).double(), wide, relative=0.0)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.25, 0),
        (0.2500001, 1),
        (0.75, 2),
        (1.25, 2),
        (1.75, 4),
        (2.5, 4),
        (3.5, 6),
        (5.0, 6),
        (5.01, 7),
        (1e9, 7),
        (-0.75, 10),
        (-0.0, 8),
    ],
)
def test_ties_go_to_the_even_code(value, code):
    assert int(f.encode_e2m1(torch.tensor(value))) == code


def test_codes_survive_a_round_trip():
    codes = torch.arange(16, dtype=torch.uint8)
    assert f.encode_e2m1(f.decode_e2m1(codes)).tolist() == codes.tolist()


@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (64, 512)])
def test_quantising_keeps_gaussian_weights_within_a_tenth(shape):
    w = torch.randn(*shape)
    assert_close(r.dequantize(r.quantize(w)), w, relative=0.12)


def test_the_scale_search_never_makes_the_error_larger():
    w = torch.randn(64, 512)
    plain, searched = (r.dequantize(r.quantize(w, method=m)) - w for m in ("amax", "mse"))
    by_group = [(e.view(64, 32, 16).square().sum(-1)) for e in (plain, searched)]
    assert (by_group[1] <= by_group[0] * (1 + 1e-6)).all()
    assert by_group[1].sum() < 0.95 * by_group[0].sum()


def test_zeros_stay_zeros():
    assert not r.dequantize(r.quantize(torch.zeros(4, 32))).any()


def test_three_conventions_describe_the_same_bits():
    matrix = r.quantize(torch.randn(6, 128), input_multiplier=0.01)
    multiplier = matrix.multiplier[:1]
    modelopt = f.from_modelopt(matrix.codes, matrix.scales, multiplier, torch.tensor(0.01))
    compressed = f.from_compressed_tensors(matrix.codes, matrix.scales, 1 / multiplier, torch.tensor(100.0))
    gguf = f.from_gguf(*f.to_gguf(matrix), input_scale=0.01)
    expected = r.dequantize(matrix)
    for other in (modelopt, gguf):
        assert_same_bits(r.dequantize(other), expected)
    assert_close(r.dequantize(compressed), expected, relative=1e-7)  # a reciprocal and back
    assert f.to_gguf(matrix)[0].shape == (6, 2, 36)


def test_a_reciprocal_multiplier_is_refused():
    matrix = r.quantize(torch.randn(4, 32))
    with pytest.raises(f.BadCheckpoint, match="weight_scale_2 as a multiplier must lie between 0 and 1"):
        f.from_modelopt(matrix.codes, matrix.scales, 1 / matrix.multiplier[:1])


def test_fused_matrices_keep_their_own_multipliers():
    a, b = r.quantize(torch.randn(3, 32)), r.quantize(torch.randn(5, 32) * 40)
    assert_same_bits(r.dequantize(f.stack(a, b)), torch.cat([r.dequantize(a), r.dequantize(b)]))


@pytest.mark.parametrize("shape", [(1, 1), (130, 5), (128, 4)])
def test_swizzled_scales_come_back(shape):
    scales = torch.randint(0, 127, shape, dtype=torch.uint8)
    flat = f.swizzle_scales(scales)
    assert flat.numel() % 512 == 0
    assert_same_bits(f.unswizzle_scales(flat, *shape), scales)
    if shape[0] > 33:
        assert int(flat[1 * 16 + 1 * 4 + 2]) == int(scales[33, 2])


def unpack_as_the_kernel_does(packed: p.PackedNvfp4) -> torch.Tensor:
    """stream_gemm.cu's decode8 and scale_pair in integers."""
    words = packed.codes.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    mask = 0x81C081C0

    def turned(by):
        return ((words >> by) | (words << (32 - by))) & 0xFFFFFFFF & mask

    pairs = torch.stack([words & mask, turned(3), turned(6), ((words & 0x001B001B) * 0x4108) & mask], dim=-1)
    halves = torch.stack([pairs & 0xFFFF, pairs >> 16], dim=-1).to(torch.int32).to(torch.int16).view(torch.bfloat16)
    values = (halves.double() * 2.0**126).unflatten(3, (2, 2)).flatten(-3)  # [tile, step, lane, pair of rows, 16]
    scales = (packed.scales.to(torch.int32) * 16 + 0x7580).to(torch.int16).view(torch.bfloat16).double() * 2.0**-118
    tiles = (values * scales[..., None]).unflatten(2, (8, 4))  # tile, step, g, t, pair, 16
    return tiles.permute(0, 4, 2, 1, 3, 5).reshape(packed.rows, packed.columns)


def test_packed_weights_decode_to_the_same_numbers():
    matrix = every_product()
    assert_close(
        unpack_as_the_kernel_does(p.pack(matrix.codes, matrix.scales, matrix.multiplier)),
        r.unscaled(matrix, torch.float64),
        relative=0.0,
    )


def test_pairs_put_each_gate_beside_its_partner():
    matrix = r.quantize(torch.randn(32, 64))
    packed = p.pack(matrix.codes, matrix.scales, matrix.multiplier, pairs=True)
    gate, up = unpack_as_the_kernel_does(packed).unflatten(0, (2, 2, 8)).unbind(1)
    assert_close(torch.cat([gate.flatten(0, 1), up.flatten(0, 1)]), r.unscaled(matrix, torch.float64), relative=0.0)


def test_a_matrix_that_does_not_divide_is_refused():
    matrix = r.quantize(torch.randn(24, 64))
    with pytest.raises(ValueError, match="rows must be a multiple of 16"):
        p.pack(matrix.codes, matrix.scales, matrix.multiplier)


def test_packed_weights_are_3_2_times_smaller_than_bf16():
    matrix = r.quantize(torch.randn(512, 1024))
    assert 512 * 1024 * 2 / p.pack(matrix.codes, matrix.scales, matrix.multiplier).nbytes > 3.5


@pytest.mark.parametrize("m", [1, 5])
def test_weight_only_product(m):
    matrix, x = r.quantize(torch.randn(7, 48)), torch.randn(m, 48)
    assert_close(r.linear(x, matrix), x @ r.dequantize(matrix).T, relative=1e-6)


def test_w4a4_rows_do_not_depend_on_their_neighbours():
    matrix, x = r.quantize(torch.randn(8, 64), input_multiplier=3e-3), torch.randn(5, 64)
    together = r.linear_w4a4(x, matrix)
    assert_close(together, x @ r.dequantize(matrix).T, relative=0.2)
    codes, scales = r.quantize_activation(x, 3e-3)
    alone = r.quantize_activation(x[2:3], 3e-3)
    assert_same_bits(codes[2:3], alone[0])
    assert_same_bits(scales[2:3].view(torch.uint8), alone[1].view(torch.uint8))


@pytest.mark.parametrize("capability", [100, 120])
def test_w4a4_compiles_to_the_block_scaled_instruction(capability):
    pytest.importorskip("triton", reason="Triton is not installed; run this where it is")
    program = (
        "from kernels.nvfp4.blackwell import SHARED_LIMITS, compile_for\n"
        f"kernel = compile_for({capability})\n"
        f"print('mxf4nvf4' in kernel.asm['ptx'], kernel.metadata.shared <= SHARED_LIMITS[{capability}])"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert run.stdout.split() == ["True", "True"], run.stderr[-2000:]

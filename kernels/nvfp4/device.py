"""Triton code of NVFP4: activation quantisation, the portable W4A16 product, dequantisation, and the block-scaled
W4A4 product."""

import triton
import triton.language as tl


@triton.jit
def _e2m1(x):
    """Nearest e2m1 code, ties to even, saturating: the compares of format.encode_e2m1."""
    a = tl.abs(x)
    code = (a > 0.25).to(tl.int32) + (a >= 0.75).to(tl.int32) + (a > 1.25).to(tl.int32) + (a >= 1.75).to(tl.int32)
    code += (a > 2.5).to(tl.int32) + (a >= 3.5).to(tl.int32) + (a > 5.0).to(tl.int32)
    return code | tl.where(x.to(tl.int32, bitcast=True) < 0, 8, 0)


@triton.jit
def quantize_kernel(x_ptr, codes_ptr, scales_ptr, width, multiplier, GROUPS: tl.constexpr):
    """One program: GROUPS groups of sixteen of one row."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    pair = tl.arange(0, 8)
    live = group < width // 16
    at = row * width + group[:, None] * 16 + pair[None, :] * 2
    low = tl.load(x_ptr + at, mask=live[:, None], other=0.0).to(tl.float32)
    high = tl.load(x_ptr + at + 1, mask=live[:, None], other=0.0).to(tl.float32)
    amax = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    scale = tl.minimum(tl.div_rn(amax, 6.0 * multiplier), 448.0).to(tl.float8e4nv)
    divisor = scale.to(tl.float32) * multiplier
    safe = tl.where(divisor > 0, divisor, 1.0)[:, None]
    codes = _e2m1(tl.div_rn(low, tl.broadcast_to(safe, low.shape))) | (
        _e2m1(tl.div_rn(high, tl.broadcast_to(safe, high.shape))) << 4
    )
    codes = tl.where((divisor > 0)[:, None], codes, 0)
    tl.store(
        codes_ptr + row * (width // 2) + group[:, None] * 8 + pair[None, :], codes.to(tl.uint8), mask=live[:, None]
    )
    tl.store(scales_ptr + row * (width // 16) + group, scale, mask=live)


@triton.jit
def _values(codes):
    """e2m1 codes 0…15 in int16 to their values in float32, by arithmetic: a table would go through memory."""
    half = ((codes & 8) << 12) | ((codes & 7) << 9)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def _tile(codes_ptr, scales_ptr, rows, live, k0, K, BK: tl.constexpr, BN: tl.constexpr, DOT: tl.constexpr):
    """code x scale of rows [BN] and columns k0 … k0 + BK: exact in every type from 16 bits on."""
    byte = tl.load(
        codes_ptr + rows[:, None] * (K // 2) + k0 // 2 + tl.arange(0, BK // 2)[None, :], mask=live[:, None], other=0
    )
    codes = tl.reshape(tl.join(byte & 15, byte >> 4), (BN, BK)).to(tl.int16)
    scale = tl.load(
        scales_ptr + rows[:, None] * (K // 16) + k0 // 16 + tl.arange(0, BK // 16)[None, :],
        mask=live[:, None],
        other=0.0,
    )
    w = tl.reshape(_values(codes), (BN, BK // 16, 16)) * scale.to(tl.float32)[:, :, None]
    return tl.reshape(w, (BN, BK)).to(DOT)


@triton.jit(do_not_specialize=["M"])
def linear_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    multiplier_ptr,
    y_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    DOT: tl.constexpr,
):
    """W4A16 from the canonical layout, on any device: weights are the left operand, so that few rows of x waste
    little."""
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    m = (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)
    k = tl.arange(0, BK)
    acc = tl.zeros((BN, BM), tl.float32)
    for k0 in range(0, K, BK):
        w = _tile(codes_ptr, scales_ptr, n, n < N, k0, K, BK, BN, DOT)
        x = tl.load(x_ptr + m[None, :] * K + k0 + k[:, None], mask=(m < M)[None, :], other=0.0).to(DOT)
        acc = tl.dot(w, x, acc)
    acc *= tl.load(multiplier_ptr + n, mask=n < N, other=0.0)[:, None]
    tl.store(
        y_ptr + m[None, :] * N + n[:, None], acc.to(y_ptr.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None]
    )


@triton.jit
def scale_kernel(product_ptr, multiplier_ptr, y_ptr, N, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """The product's columns times their multipliers; with PAIRS eight gates stand before their eight partners, and
    the result is SiLU of one times the other."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PAIRS:
        live = i < N // 2
        column = i // 8 * 16 + i % 8
        gate = tl.load(product_ptr + row * N + column, mask=live, other=0.0).to(tl.float32)
        up = tl.load(product_ptr + row * N + column + 8, mask=live, other=0.0).to(tl.float32)
        gate *= tl.load(multiplier_ptr + column, mask=live, other=0.0)
        up *= tl.load(multiplier_ptr + column + 8, mask=live, other=0.0)
        y = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(y_ptr + row * (N // 2) + i, y.to(y_ptr.dtype.element_ty), mask=live)
    else:
        live = i < N
        y = tl.load(product_ptr + row * N + i, mask=live, other=0.0).to(tl.float32)
        y *= tl.load(multiplier_ptr + i, mask=live, other=0.0)
        tl.store(y_ptr + row * N + i, y.to(y_ptr.dtype.element_ty), mask=live)


@triton.jit
def linear_w4a4_kernel(
    x_codes_ptr,
    x_scales_ptr,
    w_codes_ptr,
    w_scales_ptr,
    multiplier_ptr,
    y_ptr,
    input_multiplier,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """W4A4 by the block-scaled FP4 instruction. Weights are the left operand: sm_100 wants 128 rows there, and tokens
    are few."""
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    m = (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)
    kb = tl.arange(0, BK // 2)
    kg = tl.arange(0, BK // 16)
    nm, mm = (n < N)[:, None], (m < M)[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    for k0 in range(0, K, BK):
        w = tl.load(w_codes_ptr + n[:, None] * (K // 2) + k0 // 2 + kb[None, :], mask=nm, other=0)
        x = tl.load(x_codes_ptr + m[None, :] * (K // 2) + k0 // 2 + kb[:, None], mask=(m < M)[None, :], other=0)
        ws = tl.load(w_scales_ptr + n[:, None] * (K // 16) + k0 // 16 + kg[None, :], mask=nm, other=0.0)
        xs = tl.load(x_scales_ptr + m[:, None] * (K // 16) + k0 // 16 + kg[None, :], mask=mm, other=0.0)
        acc = tl.dot_scaled(w, ws, "e2m1", x, xs, "e2m1", acc)
    acc *= (tl.load(multiplier_ptr + n, mask=n < N, other=0.0) * input_multiplier)[:, None]
    tl.store(
        y_ptr + m[None, :] * N + n[:, None], acc.to(y_ptr.dtype.element_ty), mask=(m < M)[None, :] & (n < N)[:, None]
    )

"""Triton code of the RMS norms."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, sum_ptr, width, eps, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * width + columns, rounded, mask=mask)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / width + eps)
    weight = 1.0 + tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + columns, (x * scale * weight).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_rms_norm_kernel(x_ptr, gate_ptr, weight_ptr, y_ptr, heads, gate_stride, width, eps, BLOCK: tl.constexpr):
    """One program a head of a row; gates of the heads of a row lie one after another, rows `gate_stride` apart."""
    row = tl.program_id(0).to(tl.int64)
    gate_at = row // heads * gate_stride + row % heads * width
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + gate_at + columns, mask=mask, other=0.0).to(tl.float32)
    normed = (x * tl.rsqrt(tl.sum(x * x) / width + eps)).to(x_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    y = weight * normed * (gate / (1.0 + tl.exp(-gate)))
    tl.store(y_ptr + row * width + columns, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def add_deferred_kernel(
    parts_ptr,
    h_ptr,
    weight_ptr,
    x_ptr,
    squares_ptr,
    rows,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program a row and quarter of it: h += parts in order, x = h (1 + w), and the quarter's sum of squares."""
    row = tl.program_id(0).to(tl.int64)
    quarter = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    live = i < WIDTH // 4
    column = quarter * (WIDTH // 4) + i
    weight = 1.0 + tl.load(weight_ptr + column, mask=live, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    h = tl.load(h_ptr + row * WIDTH + column, mask=live, other=0.0)
    if PARTS > 0:
        for part in tl.static_range(PARTS):
            h += tl.load(parts_ptr + (part * rows + row) * WIDTH + column, mask=live, other=0.0)
        tl.store(h_ptr + row * WIDTH + column, h, mask=live)
    x = h * weight
    if x_ptr.dtype.element_ty == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    tl.store(x_ptr + row * WIDTH + column, x.to(x_ptr.dtype.element_ty), mask=live)
    tl.store(squares_ptr + row * 4 + quarter, tl.sum(h * h))


@triton.jit(do_not_specialize=["rows"])
def silu_mul_kernel(
    parts_ptr,
    y_ptr,
    rows,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Sum the parts of a product whose columns are eight gates and their eight partners in turn; SiLU of one times
    the other."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < WIDTH // 2
    column = i // 8 * 16 + i % 8
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    gate = tl.zeros((BLOCK,), tl.float32)
    up = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        base = parts_ptr + (part * rows + row) * WIDTH + column
        gate += tl.load(base, mask=live, other=0.0)
        up += tl.load(base + 8, mask=live, other=0.0)
    y = gate / (1.0 + tl.exp(-gate)) * up
    if y_ptr.dtype.element_ty == tl.float16:
        y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
    tl.store(y_ptr + row * (WIDTH // 2) + i, y.to(y_ptr.dtype.element_ty), mask=live)

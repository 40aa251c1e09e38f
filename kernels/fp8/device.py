"""Triton code of FP8: activations by row."""

import triton
import triton.language as tl


@triton.jit
def quantize_rows_kernel(x_ptr, values_ptr, multiplier_ptr, width, BLOCK: tl.constexpr):
    """One program a row: the multiplier is its largest magnitude over 448."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < width
    x = tl.load(x_ptr + row * width + column, mask=live, other=0.0).to(tl.float32)
    multiplier = tl.maximum(tl.max(tl.abs(x)), 1e-12) / 448.0
    value = tl.minimum(tl.maximum(x / multiplier, -448.0), 448.0)
    tl.store(values_ptr + row * width + column, value.to(values_ptr.dtype.element_ty), mask=live)
    tl.store(multiplier_ptr + row, multiplier)

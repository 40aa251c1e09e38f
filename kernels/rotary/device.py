"""Triton code of the rotary embedding."""

import triton
import triton.language as tl


@triton.jit
def rotary_kernel(x_ptr, positions_ptr, cos_ptr, sin_ptr, y_ptr, heads, size, half, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK)
    mask = d < size
    base = (token * heads + head) * size
    x = tl.load(x_ptr + base + d, mask=mask, other=0.0).to(tl.float32)
    turned = d < 2 * half
    partner = tl.load(x_ptr + base + tl.where(d < half, d + half, d - half), mask=mask & turned, other=0.0).to(
        tl.float32
    )
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_ptr + position * half + d % half, mask=turned, other=1.0)
    sin = tl.load(sin_ptr + position * half + d % half, mask=turned, other=0.0)
    y = x * cos + tl.where(d < half, -partner, partner) * sin
    tl.store(y_ptr + base + d, y.to(y_ptr.dtype.element_ty), mask=mask)

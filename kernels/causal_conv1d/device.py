"""Triton code of the causal convolution."""

import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x_ptr,
    x_stride,
    weight_ptr,
    history_ptr,
    starts_ptr,
    y_ptr,
    kept_ptr,
    channels,
    queries,
    keys,
    scale,
    TAPS: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    ROUND: tl.constexpr,
    NORM: tl.constexpr,
):
    """Convolution and SiLU of BT rows and BC channels. NORM: the first `queries` blocks of channels are heads of
    queries, those up to `keys` heads of keys: their rows get length 1, queries times `scale`. ROUND: inputs are those
    that a ring in bfloat16 keeps."""
    sequence = tl.program_id(0).to(tl.int64)
    t0 = tl.program_id(1) * BT
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    cm = c < channels
    begin = tl.load(starts_ptr + sequence).to(tl.int64)
    length = tl.load(starts_ptr + sequence + 1).to(tl.int64) - begin
    t = t0 + tl.arange(0, BT)
    live = (t < length)[:, None] & cm[None, :]
    total = tl.zeros((BT, BC), tl.float32)
    for i in tl.static_range(TAPS):
        at = t - (TAPS - 1) + i
        new = tl.load(x_ptr + (begin + at)[:, None] * x_stride + c[None, :], mask=live & (at >= 0)[:, None], other=0.0)
        if ROUND:
            new = new.to(tl.bfloat16)
        old = tl.load(
            history_ptr + (sequence * (TAPS - 1) + at + TAPS - 1)[:, None] * channels + c[None, :],
            mask=live & (at < 0)[:, None],
            other=0.0,
        )
        w = tl.load(weight_ptr + i * channels + c, mask=cm, other=0.0).to(tl.float32)
        total += w[None, :] * (new.to(tl.float32) + old.to(tl.float32))
    y = total / (1.0 + tl.exp(-total))
    if NORM:
        block = tl.program_id(2)
        if block < keys:
            y = y * tl.rsqrt(tl.sum(y * y, 1) + 1e-6)[:, None]
        if block < queries:
            y = y * scale
    tl.store(y_ptr + (begin + t)[:, None] * channels + c[None, :], y.to(y_ptr.dtype.element_ty), mask=live)
    if t0 == 0:
        for i in tl.static_range(TAPS - 1):
            back = length - (TAPS - 1) + i
            late = tl.load(x_ptr + (begin + back) * x_stride + c, mask=cm & (back >= 0), other=0.0)
            if ROUND:
                late = late.to(tl.bfloat16)
            early = tl.load(
                history_ptr + (sequence * (TAPS - 1) + back + TAPS - 1) * channels + c, mask=cm & (back < 0), other=0.0
            )
            value = late.to(tl.float32) + early.to(tl.float32)
            tl.store(
                kept_ptr + (sequence * (TAPS - 1) + i) * channels + c, value.to(kept_ptr.dtype.element_ty), mask=cm
            )

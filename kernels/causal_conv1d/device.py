"""Triton code of the causal convolution."""

import triton
import triton.language as tl


@triton.jit
def _input(x, ring_ptr):
    """As a ring keeps it."""
    return x.to(ring_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def conv_kernel(
    x_ptr,
    x_stride,
    weight_ptr,
    ring_ptr,
    starts_ptr,
    slots_ptr,
    positions_ptr,
    stops_ptr,
    first_stops_ptr,
    y_ptr,
    channels,
    queries,
    keys,
    scale,
    RING: tl.constexpr,
    TAPS: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    NORM: tl.constexpr,
):
    """Convolution and SiLU of BT rows and BC channels. NORM: the first `queries` blocks of channels are heads of
    queries, those up to `keys` heads of keys: their rows get length 1, queries times `scale`. The last inputs before
    each stop, the last one of which is the end, go to the ring of its slot."""
    sequence = tl.program_id(0).to(tl.int64)
    t0 = tl.program_id(1) * BT
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    cm = c < channels
    begin = tl.load(starts_ptr + sequence).to(tl.int64)
    length = tl.load(starts_ptr + sequence + 1).to(tl.int64) - begin
    slot = tl.load(slots_ptr + sequence)
    position = tl.load(positions_ptr + sequence)
    t = t0 + tl.arange(0, BT)
    live = (t < length)[:, None] & cm[None, :]
    total = tl.zeros((BT, BC), tl.float32)
    for i in tl.static_range(TAPS):
        at = t - (TAPS - 1) + i
        new = tl.load(x_ptr + (begin + at)[:, None] * x_stride + c[None, :], mask=live & (at >= 0)[:, None], other=0.0)
        place = (position + at + RING) % RING
        old = tl.load(
            ring_ptr + (slot * RING + place)[:, None] * channels + c[None, :],
            mask=live & (at < 0)[:, None],
            other=0.0,
        )
        w = tl.load(weight_ptr + i * channels + c, mask=cm, other=0.0).to(tl.float32)
        total += w[None, :] * (_input(new, ring_ptr) + old.to(tl.float32))
    y = total / (1.0 + tl.exp(-total))
    if NORM:
        block = tl.program_id(2)
        if block < keys:
            y = y * tl.rsqrt(tl.sum(y * y, 1) + 1e-6)[:, None]
        if block < queries:
            y = y * scale
    tl.store(y_ptr + (begin + t)[:, None] * channels + c[None, :], y.to(y_ptr.dtype.element_ty), mask=live)
    if t0 == 0:
        # This program alone reads the ring at these channels, and has read what its rows need of it.
        last = tl.arange(0, TAPS) - (TAPS - 1)
        for stop in range(tl.load(first_stops_ptr + sequence), tl.load(first_stops_ptr + sequence + 1)):
            back = tl.load(stops_ptr + stop * 2) - begin + last
            target = tl.load(stops_ptr + stop * 2 + 1).to(tl.int64)
            cell = (position + back + RING) % RING
            whole = (last < 0)[:, None] & cm[None, :]
            is_late = (back >= 0)[:, None]
            late = tl.load(x_ptr + (begin + back)[:, None] * x_stride + c[None, :], mask=whole & is_late, other=0.0)
            early_at = ring_ptr + (slot * RING + cell)[:, None] * channels + c[None, :]
            early = tl.load(early_at, mask=whole & (back < 0)[:, None], other=0.0).to(tl.float32)
            tl.debug_barrier()
            kept = tl.where(is_late, _input(late, ring_ptr), early).to(ring_ptr.dtype.element_ty)
            tl.store(ring_ptr + (target * RING + cell)[:, None] * channels + c[None, :], kept, mask=whole)

"""Triton code that brings pages together."""

import triton
import triton.language as tl


@triton.jit
def _numbers(low, sign, quarter, eighth, c0, c1, c2, c3):
    """Centroids of codes: two bits of `low` and one of `sign`; see turboquant/reference.py."""
    code = (low.to(tl.int32) >> (2 * quarter)) & 3
    value = tl.where(code < 2, tl.where(code == 0, c0, c1), tl.where(code == 2, c2, c3))
    return tl.where(((sign.to(tl.int32) >> eighth) & 1) == 1, -value, value)


@triton.jit
def _widen(source_ptr, target_ptr, source, to, count, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, SIZE: tl.constexpr):
    t = tl.arange(0, PAGE)[:, None]
    d = tl.arange(0, SIZE)[None, :]
    x = tl.load(source_ptr + source + t * SIZE + d, mask=t < count, other=0.0).to(tl.float32)
    tl.store(target_ptr + to + t * (KV_HEADS * SIZE) + d, x.to(target_ptr.dtype.element_ty), mask=t < count)


@triton.jit
def _decode_keys(
    low_ptr,
    signs_ptr,
    scale_ptr,
    target_ptr,
    page,
    to,
    count,
    c0,
    c1,
    c2,
    c3,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Codes of one token lie together."""
    t = tl.arange(0, PAGE)[:, None]
    b = tl.arange(0, SIZE // 4)[None, :]
    vector = page * PAGE + t
    low = tl.load(low_ptr + vector * (SIZE // 4) + b)
    sign = tl.load(signs_ptr + vector * (SIZE // 8) + b % (SIZE // 8))
    scale = tl.load(scale_ptr + vector).to(tl.float32)
    for quarter in tl.static_range(4):
        x = _numbers(low, sign, quarter, 2 * quarter + b // (SIZE // 8), c0, c1, c2, c3) * scale
        at = to + t * (KV_HEADS * SIZE) + quarter * (SIZE // 4) + b
        tl.store(target_ptr + at, x.to(target_ptr.dtype.element_ty), mask=t < count)


@triton.jit
def _decode_values(
    low_ptr,
    signs_ptr,
    scale_ptr,
    target_ptr,
    page,
    to,
    count,
    c0,
    c1,
    c2,
    c3,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Codes of one dimension lie together; the scales are those of tokens all the same."""
    d = tl.arange(0, SIZE)[None, :]
    b = tl.arange(0, PAGE // 4)[:, None]
    vector = page * SIZE + d
    low = tl.load(low_ptr + vector * (PAGE // 4) + b)
    sign = tl.load(signs_ptr + vector * (PAGE // 8) + b % (PAGE // 8))
    for quarter in tl.static_range(4):
        t = quarter * (PAGE // 4) + b
        scale = tl.load(scale_ptr + page * PAGE + t).to(tl.float32)
        x = _numbers(low, sign, quarter, 2 * quarter + b // (PAGE // 8), c0, c1, c2, c3) * scale
        tl.store(target_ptr + to + t * (KV_HEADS * SIZE) + d, x.to(target_ptr.dtype.element_ty), mask=t < count)


@triton.jit
def gather_kernel(
    table_ptr,
    k_ptr,
    v_ptr,
    k_low_ptr,
    k_signs_ptr,
    k_scale_ptr,
    v_low_ptr,
    v_signs_ptr,
    v_scale_ptr,
    keys_ptr,
    values_ptr,
    c0,
    c1,
    c2,
    c3,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    STAGED: tl.constexpr,
):
    """One program: one page and head, keys or values."""
    entry = table_ptr + tl.program_id(0).to(tl.int64) * 4
    head = tl.program_id(1)
    is_keys = tl.program_id(2) == 0
    first = tl.load(entry).to(tl.int64)
    to = (tl.load(entry + 2).to(tl.int64) * KV_HEADS + head) * SIZE
    count = tl.load(entry + 3)
    source = (first * KV_HEADS + head) * PAGE * SIZE
    if first >= 0:
        if is_keys:
            _widen(k_ptr, keys_ptr, source, to, count, KV_HEADS, PAGE, SIZE)
        else:
            _widen(v_ptr, values_ptr, source, to, count, KV_HEADS, PAGE, SIZE)
    elif STAGED:
        page = tl.load(entry + 1).to(tl.int64) * KV_HEADS + head
        if is_keys:
            _decode_keys(
                k_low_ptr, k_signs_ptr, k_scale_ptr, keys_ptr, page, to, count, c0, c1, c2, c3, KV_HEADS, PAGE, SIZE
            )
        else:
            _decode_values(
                v_low_ptr, v_signs_ptr, v_scale_ptr, values_ptr, page, to, count, c0, c1, c2, c3, KV_HEADS, PAGE, SIZE
            )

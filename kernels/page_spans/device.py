"""Triton code that brings pages together."""

import triton
import triton.language as tl


@triton.jit
def _widen(source_ptr, target_ptr, source, to, count, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, SIZE: tl.constexpr):
    t = tl.arange(0, PAGE)[:, None]
    d = tl.arange(0, SIZE)[None, :]
    x = tl.load(source_ptr + source + t * SIZE + d, mask=t < count, other=0.0).to(tl.float32)
    tl.store(target_ptr + to + t * (KV_HEADS * SIZE) + d, x.to(target_ptr.dtype.element_ty), mask=t < count)


@triton.jit
def _decode(
    codes_ptr,
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
    KEYS: tl.constexpr,
):
    """Words of eight codes, of 64 tokens and 256 dimensions in the order of paged_attention/cache.py."""
    word = tl.arange(0, 128)
    bits = (4 * tl.arange(0, 8))[None, :]
    r = tl.arange(0, 32)
    for group in tl.static_range(4):
        at = codes_ptr + page * (PAGE * SIZE * 3 // 32) + group * 384 + word
        n0 = (tl.load(at)[:, None] >> bits) & 15
        n1 = (tl.load(at + 128)[:, None] >> bits) & 15
        n2 = (tl.load(at + 256)[:, None] >> bits) & 15
        spread = (n0 >> 3) * 4 + (n1 >> 3) * 2 + (n2 >> 3)
        for step in tl.static_range(4):
            code = (n0 if step == 0 else n1 if step == 1 else n2 if step == 2 else spread) & 7
            low = code & 3
            x = tl.where(low < 2, tl.where(low == 0, c0, c1), tl.where(low == 2, c2, c3))
            x = tl.reshape(tl.where(code > 3, -x, x), (8, 4, 4, 2, 4))
            if KEYS:
                t = r // 8 * 16 + r % 8 // 2 * 4 + step // 2 * 2 + r % 2
                d = group * 64 + step % 2 * 32 + r
                x = tl.reshape(tl.permute(x, (2, 0, 3, 1, 4)), (32, 32))
            else:
                t = step % 2 * 32 + r
                d = group * 64 + r // 8 * 16 + step // 2 * 8 + r % 8
                x = tl.reshape(tl.permute(x, (3, 1, 4, 2, 0)), (32, 32))
            x = x * tl.load(scale_ptr + page * PAGE + t).to(tl.float32)[:, None]
            place = target_ptr + to + t[:, None] * (KV_HEADS * SIZE) + d[None, :]
            tl.store(place, x.to(target_ptr.dtype.element_ty), mask=(t < count)[:, None])


@triton.jit
def gather_kernel(
    table_ptr,
    k_ptr,
    v_ptr,
    k_codes_ptr,
    k_scale_ptr,
    v_codes_ptr,
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
            _decode(k_codes_ptr, k_scale_ptr, keys_ptr, page, to, count, c0, c1, c2, c3, KV_HEADS, PAGE, SIZE, True)
        else:
            _decode(v_codes_ptr, v_scale_ptr, values_ptr, page, to, count, c0, c1, c2, c3, KV_HEADS, PAGE, SIZE, False)

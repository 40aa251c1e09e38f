"""Triton code of the gated delta rule."""

import triton
import triton.language as tl


@triton.jit
def recurrent_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    state_ptr,
    in_ptr,
    out_ptr,
    o_ptr,
    tokens,
    HK: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
):
    """One program: one sequence, one value head, BV columns of its state. Columns are independent, so nothing is
    reduced
    across programs."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    rk = tl.arange(0, K)
    rv = tl.program_id(2) * BV + tl.arange(0, BV)
    tile = head * K * V + rk[:, None] * V + rv[None, :]
    s = tl.load(state_ptr + tl.load(in_ptr + sequence) * H * K * V + tile).to(tl.float32)
    for t in range(tokens):
        row = sequence * tokens + t
        key = (row * HK + head // (H // HK)) * K
        q = tl.load(q_ptr + key + rk).to(tl.float32)
        k = tl.load(k_ptr + key + rk).to(tl.float32)
        v = tl.load(v_ptr + (row * H + head) * V + rv).to(tl.float32)
        s = s * tl.exp(tl.load(g_ptr + row * H + head))
        delta = tl.load(beta_ptr + row * H + head) * (v - tl.sum(s * k[:, None], 0))
        s = s + k[:, None] * delta[None, :]
        tl.store(o_ptr + (row * H + head) * V + rv, tl.sum(s * q[:, None], 0).to(o_ptr.dtype.element_ty))
        slot = tl.load(out_ptr + row)
        if slot >= 0:
            tl.store(state_ptr + slot * H * K * V + tile, s.to(state_ptr.dtype.element_ty))


@triton.jit
def chunk_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    first_ptr,
    starts_ptr,
    o_ptr,
    last_ptr,
    HK: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one packed sequence, one value head, BV columns; chunks in order with the state held on chip."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    begin = tl.load(starts_ptr + sequence).to(tl.int64)
    end = tl.load(starts_ptr + sequence + 1).to(tl.int64)
    i = tl.arange(0, C)
    rk = tl.arange(0, K)
    rv = tl.program_id(2) * BV + tl.arange(0, BV)
    tile = (sequence * H + head) * K * V + rk[:, None] * V + rv[None, :]
    s = tl.load(first_ptr + tile).to(tl.float32)
    for c0 in range(begin, end, C):
        t = c0 + i
        live = t < end
        at = (t[:, None] * HK + head // (H // HK)) * K + rk[None, :]
        q = tl.load(q_ptr + at, mask=live[:, None], other=0.0).to(tl.float32)
        k = tl.load(k_ptr + at, mask=live[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_ptr + (t[:, None] * H + head) * V + rv[None, :], mask=live[:, None], other=0.0).to(tl.float32)
        # Padding: g = 0 and beta = 0 leave the state alone, and the last cumulative g is that of the last real token.
        g = tl.load(g_ptr + t * H + head, mask=live, other=0.0).to(tl.float32)
        beta = tl.load(beta_ptr + t * H + head, mask=live, other=0.0).to(tl.float32)
        total = tl.cumsum(g, 0)
        # Masked before the exponential: the upper triangle would overflow.
        decay = tl.exp(tl.where(i[:, None] >= i[None, :], total[:, None] - total[None, :], float("-inf")))
        kt = tl.trans(k)
        a = tl.dot(k * beta[:, None], kt, input_precision=PRECISION) * decay
        # (I + A)^-1 for strictly lower A is (I - A)(I + A²)(I + A⁴)…, which ends: A^C = 0.
        a = tl.where(i[:, None] > i[None, :], -a, 0.0)
        inverse = a + (i[:, None] == i[None, :]).to(tl.float32)
        power = a
        step = 2
        while step < C:
            power = tl.dot(power, power, input_precision=PRECISION)
            inverse += tl.dot(inverse, power, input_precision=PRECISION)
            step *= 2
        u = tl.dot(inverse, v * beta[:, None], input_precision=PRECISION)
        w = tl.dot(inverse, k * (beta * tl.exp(total))[:, None], input_precision=PRECISION)
        new = u - tl.dot(w, s, input_precision=PRECISION)
        o = tl.dot(q * tl.exp(total)[:, None], s, input_precision=PRECISION)
        o += tl.dot(tl.dot(q, kt, input_precision=PRECISION) * decay, new, input_precision=PRECISION)
        tl.store(o_ptr + (t[:, None] * H + head) * V + rv[None, :], o.to(o_ptr.dtype.element_ty), mask=live[:, None])
        last = tl.sum(g, 0)
        s = s * tl.exp(last) + tl.dot(tl.trans(k * tl.exp(last - total)[:, None]), new, input_precision=PRECISION)
    tl.store(last_ptr + tile, s)

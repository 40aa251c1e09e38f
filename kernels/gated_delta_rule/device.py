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
def gates_kernel(
    small_ptr, small_stride, a_log_ptr, dt_bias_ptr, g_ptr, beta_ptr, H: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a row of [b | a]."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK)
    live = h < H
    b = tl.load(small_ptr + row * small_stride + h, mask=live, other=0.0).to(tl.float32)
    a = tl.load(small_ptr + row * small_stride + H + h, mask=live, other=0.0).to(tl.float32)
    x = a + tl.load(dt_bias_ptr + h, mask=live, other=0.0)
    # log(1 + e) without what rounding e against 1 loses; softplus(x) = max(x, 0) + log(1 + exp(-|x|)).
    e = tl.exp(-tl.abs(x))
    wide = 1.0 + e
    rest = wide - 1.0
    tail = tl.where(rest > 0.0, tl.log(wide) * (e / tl.where(rest > 0.0, rest, 1.0)), e)
    g = -tl.exp(tl.load(a_log_ptr + h, mask=live, other=0.0)) * (tl.maximum(x, 0.0) + tail)
    tl.store(g_ptr + row * H + h, g, mask=live)
    tl.store(beta_ptr + row * H + h, 1.0 / (1.0 + tl.exp(-b)), mask=live)


@triton.jit
def _chunk_decay(g_ptr, beta_ptr, t, live, head, H: tl.constexpr, C: tl.constexpr):
    """Of a chunk's rows: sums of g up to each, what is left of row j at row i, and beta. Padding has g = 0 and beta =
    0: it leaves the state alone, and the last sum is that of the last real token."""
    i = tl.arange(0, C)
    total = tl.cumsum(tl.load(g_ptr + t * H + head, mask=live, other=0.0).to(tl.float32), 0)
    beta = tl.load(beta_ptr + t * H + head, mask=live, other=0.0).to(tl.float32)
    # Masked before the exponential: the upper triangle would overflow.
    decay = tl.exp(tl.where(i[:, None] >= i[None, :], total[:, None] - total[None, :], float("-inf")))
    return total, decay, beta


@triton.jit
def chunk_solve_kernel(
    k_ptr,
    v_ptr,
    k_stride,
    v_stride,
    g_ptr,
    beta_ptr,
    blocks_ptr,
    u_ptr,
    w_ptr,
    HK: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk, one value head. U = T diag(beta) V and W = T diag(beta e^G) K, which no other chunk
    enters. T = (I + A)^-1 for strictly lower A is (I - A)(I + A²)(I + A⁴)…, which ends: A^C = 0."""
    begin = tl.load(blocks_ptr + tl.program_id(0) * 2).to(tl.int64)
    end = tl.load(blocks_ptr + tl.program_id(0) * 2 + 1).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, C)
    rk = tl.arange(0, K)
    rv = tl.arange(0, V)
    t = begin + i
    live = t < end
    k_at = t[:, None] * k_stride + head // (H // HK) * K + rk[None, :]
    k = tl.load(k_ptr + k_at, mask=live[:, None], other=0.0).to(DOT)
    total, decay, beta = _chunk_decay(g_ptr, beta_ptr, t, live, head, H, C)
    a = tl.dot(k, tl.trans(k), input_precision=PRECISION) * decay * beta[:, None]
    power = tl.where(i[:, None] > i[None, :], -a, 0.0)
    inverse = power + (i[:, None] == i[None, :]).to(tl.float32)
    step = 2
    while step < C:
        power = tl.dot(power, power, input_precision=PRECISION)
        inverse += tl.dot(inverse, power, input_precision=PRECISION)
        step *= 2
    w = tl.dot((inverse * (beta * tl.exp(total))[None, :]).to(DOT), k, input_precision=PRECISION)
    w_at = (t[:, None] * H + head) * K + rk[None, :]
    tl.store(w_ptr + w_at, w.to(w_ptr.dtype.element_ty), mask=live[:, None])
    v_at = t[:, None] * v_stride + head * V + rv[None, :]
    v = tl.load(v_ptr + v_at, mask=live[:, None], other=0.0).to(DOT)
    u = tl.dot((inverse * beta[None, :]).to(DOT), v, input_precision=PRECISION)
    u_at = (t[:, None] * H + head) * V + rv[None, :]
    tl.store(u_ptr + u_at, u.to(u_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def chunk_state_kernel(
    q_ptr,
    k_ptr,
    q_stride,
    k_stride,
    g_ptr,
    u_ptr,
    w_ptr,
    state_ptr,
    starts_ptr,
    slots_ptr,
    stops_ptr,
    first_stops_ptr,
    o_ptr,
    HK: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    STAGES: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one packed sequence, one value head, BV columns; chunks in order with the state held on chip. V' =
    U - W S replaces U, and o = (e^G Q) S, to which the chunk's own rows are added by chunk_output_kernel. The state is
    held transposed, so that it stays in registers as the left factor of its products. Where it stops, the last time at
    the end, it goes to a slot."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, C)
    rk = tl.arange(0, K)
    rv = tl.program_id(2) * BV + tl.arange(0, BV)
    tile = state_ptr + head * K * V + rk[None, :] * V + rv[:, None]
    key = head // (H // HK) * K
    s = tl.load(tile + tl.load(slots_ptr + sequence) * H * K * V).to(tl.float32)
    begin = tl.load(starts_ptr + sequence).to(tl.int64)
    for stop in range(tl.load(first_stops_ptr + sequence), tl.load(first_stops_ptr + sequence + 1)):
        end = tl.load(stops_ptr + stop * 2).to(tl.int64)
        for c0 in tl.range(begin, end, C, num_stages=STAGES):
            t = c0 + i
            live = t < end
            g = tl.load(g_ptr + t * H + head, mask=live, other=0.0).to(tl.float32)
            total = tl.cumsum(g, 0)
            last = tl.sum(g, 0)
            w = tl.load(w_ptr + (t[:, None] * H + head) * K + rk[None, :], mask=live[:, None], other=0.0)
            q = tl.load(q_ptr + t[:, None] * q_stride + key + rk[None, :], mask=live[:, None], other=0.0).to(DOT)
            k = tl.load(k_ptr + t[:, None] * k_stride + key + rk[None, :], mask=live[:, None], other=0.0).to(DOT)
            at = (t[:, None] * H + head) * V + rv[None, :]
            u = tl.load(u_ptr + at, mask=live[:, None], other=0.0)
            narrow = s.to(DOT)
            new = tl.trans(u).to(tl.float32) - tl.dot(narrow, tl.trans(w), input_precision=PRECISION)
            o = tl.dot(narrow, tl.trans(q), input_precision=PRECISION) * tl.exp(total)[None, :]
            tl.store(u_ptr + at, tl.trans(new.to(u_ptr.dtype.element_ty)), mask=live[:, None])
            tl.store(o_ptr + at, tl.trans(o.to(o_ptr.dtype.element_ty)), mask=live[:, None])
            kept = (new * tl.exp(last - total)[None, :]).to(DOT)
            s = s * tl.exp(last) + tl.dot(kept, k, input_precision=PRECISION)
        tl.store(tile + tl.load(stops_ptr + stop * 2 + 1).to(tl.int64) * H * K * V, s)
        begin = end


@triton.jit
def chunk_output_kernel(
    q_ptr,
    k_ptr,
    q_stride,
    k_stride,
    g_ptr,
    beta_ptr,
    new_ptr,
    blocks_ptr,
    o_ptr,
    HK: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk, one value head. o += (Q Kᵀ ⊙ decay) V'."""
    begin = tl.load(blocks_ptr + tl.program_id(0) * 2).to(tl.int64)
    end = tl.load(blocks_ptr + tl.program_id(0) * 2 + 1).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, C)
    rk = tl.arange(0, K)
    rv = tl.arange(0, V)
    t = begin + i
    live = t < end
    key = head // (H // HK) * K
    q = tl.load(q_ptr + t[:, None] * q_stride + key + rk[None, :], mask=live[:, None], other=0.0).to(DOT)
    k = tl.load(k_ptr + t[:, None] * k_stride + key + rk[None, :], mask=live[:, None], other=0.0).to(DOT)
    _, decay, _ = _chunk_decay(g_ptr, beta_ptr, t, live, head, H, C)
    scores = (tl.dot(q, tl.trans(k), input_precision=PRECISION) * decay).to(DOT)
    at = (t[:, None] * H + head) * V + rv[None, :]
    new = tl.load(new_ptr + at, mask=live[:, None], other=0.0)
    o = tl.load(o_ptr + at, mask=live[:, None], other=0.0).to(tl.float32)
    o += tl.dot(scores, new, input_precision=PRECISION)
    tl.store(o_ptr + at, o.to(o_ptr.dtype.element_ty), mask=live[:, None])

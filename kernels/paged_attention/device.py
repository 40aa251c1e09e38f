"""Triton code of attention over pages of one stage."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.turboquant.device import hadamard_product


@triton.jit
def _weigh(s, seen, most, total):
    """Online softmax: the new maximum, the factor of what was summed before, the weights, the new total."""
    s = tl.where(seen[None, :], s, -1e30)
    new_most = tl.maximum(most, tl.max(s, 1))
    shrink = tl.exp(most - new_most)
    p = tl.where(seen[None, :], tl.exp(s - new_most[:, None]), 0.0)
    return new_most, shrink, p, total * shrink + tl.sum(p, 1)


@triton.jit
def _used_runs(
    own,
    RUN: tl.constexpr,
    LEVEL_RUNS: tl.constexpr,
    LEVELS: tl.constexpr,
    ANCHORS: tl.constexpr,
    RECENT: tl.constexpr,
):
    """Runs of pages up to a row's own page, those of recent pages apart; see runs.py."""
    boundary = own - RECENT + 1
    is_cut = (RECENT > 0) & (boundary > ANCHORS)
    end = tl.where(is_cut, boundary - 1, own)
    shortest = tl.where(is_cut, 2 * RUN, RUN)
    level_runs = tl.where(is_cut, LEVEL_RUNS // 2, LEVEL_RUNS)
    level = 0
    for n in tl.static_range(1, LEVELS):
        level += (end >= level_runs * shortest * ((1 << n) - 1)).to(tl.int32)
    level = tl.minimum(level, tl.where(is_cut, LEVELS - 2, LEVELS - 1))
    start = level_runs * shortest * ((1 << level) - 1)
    return level_runs * level + (end - start) // (shortest << level) + 1, tl.where(is_cut, tl.cdiv(RECENT, 2 * RUN), 0)


@triton.jit(do_not_specialize=["rows", "table_width", "splits"])
def attend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    positions_ptr,
    acc_ptr,
    ml_ptr,
    rows,
    table_width,
    splits,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    RUN: tl.constexpr,
    LEVEL_RUNS: tl.constexpr,
    LEVELS: tl.constexpr,
    DOT: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program: one query row, one KV head, one run of pages. Runs stand at absolute positions, so that neither
    the batch nor the other rows change the order of a sum. q is rotated [B * rows, KV_HEADS * GROUP, SIZE]."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    sequence = row // rows
    position = (tl.load(positions_ptr + sequence) + row % rows).to(tl.int32)
    own = position // PAGE
    level = tl.minimum(split // LEVEL_RUNS, LEVELS - 1)
    first = LEVEL_RUNS * RUN * ((1 << level) - 1) + (split - LEVEL_RUNS * level) * (RUN << level)
    last = tl.minimum(first + (RUN << level), own + 1)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    if first >= last:
        return
    Q: tl.constexpr = SIZE // 4
    h = tl.arange(0, 16)
    r = tl.arange(0, Q)
    qb = (row * KV_HEADS + head) * GROUP
    hm = (h < GROUP)[:, None]
    q0 = tl.load(q_ptr + (qb + h)[:, None] * SIZE + r[None, :], mask=hm, other=0.0).to(DOT)
    q1 = tl.load(q_ptr + (qb + h)[:, None] * SIZE + Q + r[None, :], mask=hm, other=0.0).to(DOT)
    q2 = tl.load(q_ptr + (qb + h)[:, None] * SIZE + 2 * Q + r[None, :], mask=hm, other=0.0).to(DOT)
    q3 = tl.load(q_ptr + (qb + h)[:, None] * SIZE + 3 * Q + r[None, :], mask=hm, other=0.0).to(DOT)
    most = tl.full((16,), -1e30, tl.float32)
    total = tl.zeros((16,), tl.float32)
    a0 = tl.zeros((16, Q), tl.float32)
    a1 = tl.zeros((16, Q), tl.float32)
    a2 = tl.zeros((16, Q), tl.float32)
    a3 = tl.zeros((16, Q), tl.float32)
    token = tl.arange(0, PAGE)
    for page in tl.range(first, last, num_stages=STAGES):
        base = (tl.load(table_ptr + sequence * table_width + page).to(tl.int64) * KV_HEADS + head) * PAGE
        at = (base + token)[:, None] * SIZE + r[None, :]
        s = tl.dot(q0, tl.trans(tl.load(k_ptr + at).to(DOT)))
        s = tl.dot(q1, tl.trans(tl.load(k_ptr + at + Q).to(DOT)), s)
        s = tl.dot(q2, tl.trans(tl.load(k_ptr + at + 2 * Q).to(DOT)), s)
        s = tl.dot(q3, tl.trans(tl.load(k_ptr + at + 3 * Q).to(DOT)), s)
        most, shrink, p, total = _weigh(s * scale, page * PAGE + token <= position, most, total)
        p = p.to(DOT)
        a0 = tl.dot(p, tl.load(v_ptr + at).to(DOT), a0 * shrink[:, None])
        a1 = tl.dot(p, tl.load(v_ptr + at + Q).to(DOT), a1 * shrink[:, None])
        a2 = tl.dot(p, tl.load(v_ptr + at + 2 * Q).to(DOT), a2 * shrink[:, None])
        a3 = tl.dot(p, tl.load(v_ptr + at + 3 * Q).to(DOT), a3 * shrink[:, None])
    out = (row * KV_HEADS + head) * splits + split
    to = acc_ptr + (out * 16 + h)[:, None] * SIZE + r[None, :]
    tl.store(to, a0, mask=hm)
    tl.store(to + Q, a1, mask=hm)
    tl.store(to + 2 * Q, a2, mask=hm)
    tl.store(to + 3 * Q, a3, mask=hm)
    tl.store(ml_ptr + out * 32 + h, most)
    tl.store(ml_ptr + out * 32 + 16 + h, total)


@triton.jit
def _join_splits(acc_ptr, ml_ptr, first, splits, runs, recent_runs, head, SIZE: tl.constexpr, JOIN: tl.constexpr):
    """Softmax over the runs of one query head, JOIN at a time from the first on, the recent ones last. How many there
    are depends on the row's position alone, and so does the order of the sums."""
    d = tl.arange(0, SIZE)
    j = tl.arange(0, JOIN)
    most = -1e30
    total = 0.0
    acc = tl.zeros((SIZE,), tl.float32)
    for start in range(0, runs + recent_runs, JOIN):
        run = start + j
        live = run < runs + recent_runs
        at = first + tl.where(run < runs, run, splits - recent_runs - runs + run)
        m = tl.load(ml_ptr + at * 32 + head, mask=live, other=-1e30)
        total_of_run = tl.load(ml_ptr + at * 32 + 16 + head, mask=live, other=0.0)
        part = tl.load(acc_ptr + (at * 16 + head)[:, None] * SIZE + d[None, :], mask=live[:, None], other=0.0)
        new_most = tl.maximum(most, tl.max(m))
        weight = tl.where(live, tl.exp(m - new_most), 0.0)
        old = tl.exp(most - new_most)
        acc = acc * old + tl.sum(part * weight[:, None], 0)
        total = total * old + tl.sum(total_of_run * weight)
        most = new_most
    return acc / total


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_kernel(
    acc_ptr,
    ml_ptr,
    positions_ptr,
    signs_ptr,
    hadamard_ptr,
    out_ptr,
    rows,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    ROOT: tl.constexpr,
    PAGE: tl.constexpr,
    RUN: tl.constexpr,
    LEVEL_RUNS: tl.constexpr,
    LEVELS: tl.constexpr,
    ANCHORS: tl.constexpr,
    RECENT: tl.constexpr,
):
    """Join the splits of one query head and rotate back."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, SIZE)
    i = tl.arange(0, ROOT)
    own = ((tl.load(positions_ptr + row // rows) + row % rows) // PAGE).to(tl.int32)
    runs, recent = _used_runs(own, RUN, LEVEL_RUNS, LEVELS, ANCHORS, RECENT)
    first = (row * KV_HEADS + head // GROUP) * splits
    joined = _join_splits(acc_ptr, ml_ptr, first, splits, runs, recent, head % GROUP, SIZE, 64)
    h = tl.load(hadamard_ptr + i[:, None] * ROOT + i[None, :])
    y = hadamard_product(joined, h, ROOT) * tl.load(signs_ptr + d)
    tl.store(out_ptr + (row * KV_HEADS * GROUP + head) * SIZE + d, y.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "table_width"])
def prepare_kernel(
    mixed_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    signs_ptr,
    hadamard_ptr,
    positions_ptr,
    table_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    rows,
    table_width,
    total_rows,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROOT: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Between the projection and attention, one program a row and head: sum the parts of the product, norm and RoPE
    for q and k, rotate, and write k and v to their FP8 page. mixed [PARTS, rows, HEADS * (q | gate) | k | v]."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    r = tl.arange(0, SIZE)
    i = tl.arange(0, ROOT)
    h = tl.load(hadamard_ptr + i[:, None] * ROOT + i[None, :])
    sign = tl.load(signs_ptr + r)
    WIDTH: tl.constexpr = (HEADS * 2 + KV_HEADS * 2) * SIZE
    column = tl.where(head < HEADS, head * 2, HEADS + head) * SIZE
    rotated = r < 2 * HALF
    partner = tl.where(rotated, tl.where(r < HALF, r + HALF, r - HALF), r)
    # What is loaded late is waited for once more: all that does not depend on the product stands before the wait.
    norm_ptr = q_norm_ptr if head < HEADS else k_norm_ptr
    norm, partner_norm = tl.load(norm_ptr + r), tl.load(norm_ptr + partner)
    position = tl.load(positions_ptr + row // rows).to(tl.int64) + row % rows
    cos = tl.load(cos_ptr + position * HALF + r % HALF, mask=rotated, other=1.0)
    sin = tl.load(sin_ptr + position * HALF + r % HALF, mask=rotated, other=0.0)
    page = tl.load(table_ptr + (row // rows) * table_width + position // PAGE).to(tl.int64)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.zeros((SIZE,), tl.float32)
    y = tl.zeros((SIZE,), tl.float32)
    for part in tl.static_range(PARTS):
        base = mixed_ptr + (part * total_rows + row) * WIDTH + column
        x += tl.load(base + r).to(tl.float32)
        y += tl.load(base + partner).to(tl.float32)
    if head < HEADS + KV_HEADS:
        scale = tl.rsqrt(tl.sum(x * x) / SIZE + 1e-6)
        x = x * scale * (1.0 + norm)
        y = y * scale * (1.0 + partner_norm)
        x = x * cos + tl.where(r < HALF, -y, y) * sin
    x = hadamard_product(x * sign, h, ROOT)
    if head < HEADS:
        tl.store(q_ptr + (row * HEADS + head) * SIZE + r, x)
    else:
        kv = (head - HEADS) % KV_HEADS
        to = ((page * KV_HEADS + kv) * PAGE + position % PAGE) * SIZE + r
        if k_ptr.dtype.element_ty == tl.float8e4nv:
            x = tl.minimum(tl.maximum(x, -448.0), 448.0)
        if head < HEADS + KV_HEADS:
            tl.store(k_ptr + to, x.to(k_ptr.dtype.element_ty))
        else:
            tl.store(v_ptr + to, x.to(v_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["rows", "splits"])
def finish_kernel(
    acc_ptr,
    ml_ptr,
    positions_ptr,
    mixed_ptr,
    signs_ptr,
    hadamard_ptr,
    out_ptr,
    rows,
    total_rows,
    splits,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROOT: tl.constexpr,
    PAGE: tl.constexpr,
    RUN: tl.constexpr,
    LEVEL_RUNS: tl.constexpr,
    LEVELS: tl.constexpr,
    ANCHORS: tl.constexpr,
    RECENT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """After attention, one program a row and query head: join the splits in order, rotate back, gate, round."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, SIZE)
    i = tl.arange(0, ROOT)
    h = tl.load(hadamard_ptr + i[:, None] * ROOT + i[None, :])
    sign = tl.load(signs_ptr + d)
    own = ((tl.load(positions_ptr + row // rows) + row % rows) // PAGE).to(tl.int32)
    runs, recent = _used_runs(own, RUN, LEVEL_RUNS, LEVELS, ANCHORS, RECENT)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    gate = tl.zeros((SIZE,), tl.float32)
    for part in tl.static_range(PARTS):
        base = mixed_ptr + (part * total_rows + row) * ((HEADS + KV_HEADS) * 2 * SIZE)
        gate += tl.load(base + (head * 2 + 1) * SIZE + d).to(tl.float32)
    first = (row * KV_HEADS + head // GROUP) * splits
    joined = _join_splits(acc_ptr, ml_ptr, first, splits, runs, recent, head % GROUP, SIZE, 64)
    y = hadamard_product(joined, h, ROOT) * sign
    y = y / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + (row * HEADS + head) * SIZE + d, y.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["mixed_width"])
def leave_kernel(
    attended_ptr,
    mixed_ptr,
    signs_ptr,
    hadamard_ptr,
    out_ptr,
    mixed_width,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    ROOT: tl.constexpr,
):
    """After attention over a prompt, one program a row and query head: rotate back, gate, round."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, SIZE)
    i = tl.arange(0, ROOT)
    h = tl.load(hadamard_ptr + i[:, None] * ROOT + i[None, :])
    x = tl.load(attended_ptr + (row * HEADS + head) * SIZE + d).to(tl.float32)
    gate = tl.load(mixed_ptr + row * mixed_width + (head * 2 + 1) * SIZE + d).to(tl.float32)
    y = hadamard_product(x, h, ROOT) * tl.load(signs_ptr + d) / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + (row * HEADS + head) * SIZE + d, y.to(out_ptr.dtype.element_ty))

"""Triton code of the sampler."""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def process_kernel(
    logits_ptr,
    counts_ptr,
    bitmask_ptr,
    temperature_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    x_ptr,
    most_ptr,
    vocabulary,
    words,
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Penalties, mask and temperature; the largest of each block beside them."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    live = i < vocabulary
    x = tl.load(logits_ptr + row * vocabulary + i, mask=live, other=0.0).to(tl.float32)
    if HAS_COUNTS:
        count = tl.load(counts_ptr + row * vocabulary + i, mask=live, other=0)
        penalty = tl.load(repetition_ptr + row)
        used = count > 0
        x = tl.where(used, tl.where(x > 0, x / penalty, x * penalty), x)
        x = x - tl.load(frequency_ptr + row) * count.to(tl.float32) - tl.load(presence_ptr + row) * used.to(tl.float32)
    if HAS_MASK:
        word = tl.load(bitmask_ptr + row * words + i // 32, mask=live, other=0)
        live = live & (((word >> (i % 32)) & 1) != 0)
    temperature = tl.load(temperature_ptr + row)
    x = tl.where(live & (x == x), x / tl.where(temperature > 0, temperature, 1.0), float("-inf"))
    tl.store(x_ptr + row * vocabulary + i, x, mask=i < vocabulary)
    tl.store(most_ptr + row * tl.num_programs(1) + block, tl.max(x))


@triton.jit
def _count_and_mass(x_ptr, base, vocabulary, edge, floor, most, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + i, mask=i < vocabulary, other=float("-inf"))
        count += (x >= edge).to(tl.int32)
        mass += tl.where((x >= edge) & (x >= floor), tl.exp(x - most), 0.0)
    return tl.sum(count), tl.sum(mass)


@triton.jit
def draw_kernel(
    x_ptr,
    most_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    chosen_ptr,
    vocabulary,
    blocks,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Edges of top-k and top-p by bisection on the value, not by sorting; then the largest of logit plus noise."""
    row = tl.program_id(0).to(tl.int64)
    base = row * vocabulary
    b = tl.arange(0, BLOCKS)
    most = tl.max(tl.load(most_ptr + row * blocks + b, mask=b < blocks, other=float("-inf")))
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    edge = most - 1e30
    if (temperature > 0) & (top_k > 0):
        # Every value of `low` keeps at least top_k ids; the largest such value is sought.
        low, high = most - 1e4, most + 1e-3
        for _ in range(STEPS):
            middle = 0.5 * (low + high)
            count, mass = _count_and_mass(x_ptr, base, vocabulary, middle, middle, most, BLOCK)
            if count >= top_k:
                low = middle
            else:
                high = middle
        edge = low
    if (temperature > 0) & (top_p < 1.0):
        count, whole = _count_and_mass(x_ptr, base, vocabulary, edge, edge, most, BLOCK)
        low, high = tl.maximum(edge, most - 1e4), most + 1e-3
        for _ in range(STEPS):
            middle = 0.5 * (low + high)
            count, mass = _count_and_mass(x_ptr, base, vocabulary, middle, edge, most, BLOCK)
            if mass >= top_p * whole:
                low = middle
            else:
                high = middle
        edge = tl.maximum(edge, low)
    if (temperature > 0) & (min_p > 0):
        edge = tl.maximum(edge, most + tl.log(min_p))
    seed = tl.load(seed_ptr + row).to(tl.uint32)
    place = tl.load(position_ptr + row).to(tl.uint32)
    key = _mix(seed ^ _mix(place + 0x9E3779B9))
    best = float("-inf")
    chosen = 0
    for start in range(0, vocabulary, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + i, mask=i < vocabulary, other=float("-inf"))
        if temperature > 0:
            bits = _mix(key ^ _mix(i.to(tl.uint32) * 0x85EBCA6B))
            u = ((bits >> 8).to(tl.int32).to(tl.float32) + 0.5) * 5.9604644775390625e-08
            x = tl.where((x >= edge) & (x > float("-inf")), x - tl.log(-tl.log(u)), float("-inf"))
        peak = tl.max(x)
        at = tl.min(tl.where(x == peak, i, 2147483647))
        if peak > best:
            best = peak
            chosen = at
    # -1 says that there was nothing to choose from; the engine fails that request.
    tl.store(chosen_ptr + row, tl.where(best > float("-inf"), chosen, -1).to(tl.int64))

"""Triton forms against the plain PyTorch ones, over odd sizes: on the GPU, else in Triton's interpreter."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels.ragged import make_ragged
from kernels.testing import assert_close, assert_same_bits

INTERPRETED = not torch.cuda.is_available()
# The interpreter multiplies bfloat16 by its bit patterns, so products are taken in float32 there.
X_TYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


def tolerance(dtype: torch.dtype) -> float:
    return 2e-5 if dtype == torch.float32 else 6e-3


@pytest.mark.parametrize("rows", [0, 1, 63])
@pytest.mark.parametrize("width", [33, 256, 500])
@pytest.mark.parametrize("dtype", X_TYPES)
def test_rms_norm_with_residual(device, rows, width, dtype):
    from kernels.rms_norm.norm import rms_norm
    from kernels.rms_norm.reference import rms_norm as expected

    if INTERPRETED and rows > 1 and width > 256:
        rows = 3
    x, residual = torch.randn(2, rows, width, device=device).to(dtype)
    weight = torch.randn(width, device=device) * 0.1
    y, total = rms_norm(x, weight, residual=residual)
    y_expected, total_expected = expected(x, weight, residual=residual)
    assert_same_bits(total, total_expected)
    assert_close(y, y_expected, relative=tolerance(dtype))


@pytest.mark.parametrize("dtype", X_TYPES)
def test_gated_rms_norm(device, dtype):
    from kernels.rms_norm.norm import gated_rms_norm
    from kernels.rms_norm.reference import gated_rms_norm as expected

    x, gate = torch.randn(2, 7, 3, 128, device=device).to(dtype)
    weight = torch.rand(128, device=device) + 0.5
    assert_close(gated_rms_norm(x, gate, weight), expected(x, gate, weight), relative=tolerance(dtype))
    apart = torch.randn(7, 500, device=device).to(dtype)[:, 60 : 60 + 3 * 128].view(7, 3, 128)
    y = gated_rms_norm(x, apart, weight, dtype=torch.float32)
    assert_close(y, expected(x, apart.contiguous(), weight), relative=tolerance(dtype))


@pytest.mark.parametrize(("tokens", "heads", "size", "dims"), [(1, 3, 256, 64), (5, 2, 48, 16), (0, 2, 64, 64)])
def test_rotary(device, tokens, heads, size, dims):
    from kernels.rotary.reference import rotary as expected
    from kernels.rotary.reference import rotary_table
    from kernels.rotary.rotate import rotary

    cos, sin = rotary_table(4096, dims, 1e7, device)
    x = torch.randn(tokens, heads, size, device=device)
    positions = torch.randint(0, 4096, (tokens,), device=device)
    assert_close(rotary(x, positions, cos, sin), expected(x, positions, cos, sin), relative=1e-6)


@pytest.mark.parametrize("lengths", [[1], [2, 0, 3], [17, 1, 63], [5, 70], [64, 129]])
def test_causal_conv_of_ragged_sequences(device, lengths):
    from kernels.causal_conv1d.conv import causal_conv1d
    from kernels.causal_conv1d.reference import causal_conv1d as expected

    channels, count = 130, len(lengths)
    # Slots out of order; a long sequence leaves its inputs after 64 rows in the last slot.
    slots, positions = list(range(count))[::-1], [64 * n + n for n in range(count)]
    rows = make_ragged(lengths, slots, positions, device, kept=[{64: count} if n > 64 else {} for n in lengths])
    x = torch.randn(sum(lengths), channels, device=device)
    weight, ring = torch.randn(4, channels, device=device), torch.randn(count + 1, 8, channels, device=device)
    theirs = ring.clone()
    assert_close(causal_conv1d(x, weight, ring, rows), expected(x, weight, theirs, rows), relative=1e-5)
    assert_same_bits(ring, theirs)


def test_convolution_with_normalised_heads_of_rows_that_lie_apart(device):
    from kernels.causal_conv1d.conv import causal_conv1d
    from kernels.causal_conv1d.reference import causal_conv1d as expected
    from kernels.gated_delta_rule.reference import normalise

    heads, size, lengths = 2, 32, [17, 1, 35]
    channels = 2 * heads * size + 96
    rows = make_ragged(lengths, [2, 0, 1], [0, 64, 128], device)
    wide = torch.randn(sum(lengths), channels + 50, device=device)
    weight, ring = torch.randn(4, channels, device=device), torch.randn(3, 8, channels, device=device)
    theirs = ring.clone()
    y = causal_conv1d(wide, weight, ring, rows, heads=(heads, size))
    y_expected = expected(wide[:, :channels].contiguous(), weight, theirs, rows)
    q, k = normalise(*y_expected[:, : 2 * heads * size].unflatten(1, (2, heads, size)).unbind(1))
    assert_close(y, torch.cat([q.flatten(1), k.flatten(1), y_expected[:, 2 * heads * size :]], 1), relative=1e-5)
    assert_same_bits(ring, theirs)


def gdn_inputs(device, batch, tokens, key_heads, heads, size, gate=1.0):
    from kernels.gated_delta_rule.reference import normalise

    q, k = torch.randn(2, batch, tokens, key_heads, size, device=device)
    q, k = (x.contiguous() for x in normalise(q, k))
    v = torch.randn(batch, tokens, heads, size, device=device)
    g = -gate * torch.rand(batch, tokens, heads, device=device)
    beta = torch.rand(batch, tokens, heads, device=device)
    return q, k, v, g, beta


@pytest.mark.parametrize("tokens", [1, 4])
def test_recurrent_step_keeps_a_state_for_each_row(device, tokens):
    from kernels.gated_delta_rule.recurrent import recurrent
    from kernels.gated_delta_rule.reference import recurrent_slots

    q, k, v, g, beta = gdn_inputs(device, 2, tokens, 1, 3, 32)
    state = torch.randn(2 + 2 * tokens, 3, 32, 32, device=device)
    state_in = torch.tensor([1, 0], device=device)
    state_out = (torch.arange(2 * tokens, device=device) + 2).view(2, tokens)
    state_out[0, 0] = -1
    mine, theirs = state.clone(), state.clone()
    o = recurrent(q, k, v, g, beta, mine, state_in, state_out)
    assert_close(o, recurrent_slots(q, k, v, g, beta, theirs, state_in, state_out), relative=2e-6)
    assert_close(mine, theirs, relative=2e-6)


@pytest.mark.parametrize(("lengths", "gate"), [([1], 1.0), ([65, 2], 0.01), ([63, 64], 20.0), ([0, 129], 1.0)])
def test_chunked_prefill_of_ragged_sequences(device, lengths, gate):
    from kernels.gated_delta_rule.chunk import chunked
    from kernels.gated_delta_rule.reference import chunked_ragged

    q, k, v, g, beta = (x[0].contiguous() for x in gdn_inputs(device, 1, sum(lengths), 1, 2, 32, gate))
    count = len(lengths)
    kept = [{64: count} if length > 64 else {} for length in lengths]
    rows = make_ragged(lengths, list(range(count))[::-1], [0] * count, device, kept=kept)
    state = torch.randn(count + 1, 2, 32, 32, device=device)
    theirs = state.double()
    o = chunked(q, k, v, g, beta, state, rows)
    o_expected = chunked_ragged(*(x.double() for x in (q, k, v, g, beta)), theirs, rows)
    # Sums of g near -1000 are known to 1e-4 in float32, and their differences stand in an exponent.
    tolerance = (2e-5 if gate <= 1 else 3e-4) if INTERPRETED else 1e-2  # bfloat16 factors
    assert_close(o, o_expected, relative=tolerance)
    assert_close(state, theirs, relative=tolerance)


def test_gates_of_rows_that_lie_apart(device):
    from kernels.gated_delta_rule.chunk import gates
    from kernels.gated_delta_rule.reference import gates as expected

    heads = 6
    wide = torch.randn(5, 4 * heads, device=device) * 20.0
    a_log, dt_bias = torch.rand(heads, device=device), torch.randn(heads, device=device)
    small = wide[:, 2 * heads :]
    theirs = expected(small[:, heads:].double(), small[:, :heads].double(), a_log, dt_bias)
    for mine, other in zip(gates(small, a_log, dt_bias), theirs, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize(("positions", "rows"), [([0], 1), ([63, 200], 1), ([126, 40], 3)])
def test_attention_over_runs_of_pages(device, positions, rows):
    from kernels.paged_attention.attend import attend
    from kernels.paged_attention.cache import allocate, write
    from kernels.paged_attention.reference import attend as expected
    from kernels.paged_attention.runs import Runs
    from kernels.paged_attention.stage import Staging

    size, page, kv_heads, heads = (64 if INTERPRETED else 256), 16, 1, 3
    staging, runs = Staging(page_tokens=page, anchors=1, recent=100), Runs(1, 2, 3)
    batch, pages = len(positions), 16
    pools = allocate(1 + batch * pages, 1 + batch * pages, kv_heads, page, size, device)
    table = 1 + torch.arange(batch * pages, device=device, dtype=torch.int32).view(batch, pages)
    for b, position in enumerate(positions):
        at = torch.arange(position + rows, device=device)
        k, v = torch.randn(2, len(at), kv_heads, size, device=device)
        write(pools, k, v, table[b].long()[at // page], at % page)
    q = torch.randn(batch, rows, heads, size, device=device)
    where = torch.tensor(positions, device=device)
    wide = attend(q, pools, table, table, where, staging, wide=True, runs=runs)
    reference = expected(q, pools, table, table, where, staging)
    assert_close(wide, reference, relative=3e-3 if not INTERPRETED else 1e-5)
    if not INTERPRETED:
        fast = attend(q, pools, table, table, where, staging, runs=runs)
        assert_close(fast, reference, relative=1e-2)
        alone = attend(q[:1], pools, table[:1], table[:1], where[:1], staging, runs=runs)
        assert_same_bits(alone, fast[:1], what="the first sequence alone")
    with pytest.raises(ValueError, match="three-bit pages are read by the CUDA form only"):
        attend(q, pools, table, table, where, Staging(page, 1, 2), wide=True)


def test_rotation(device):
    from kernels.turboquant.reference import rotate as expected
    from kernels.turboquant.rotate import rotate

    x = torch.randn(3, 5, 64 if INTERPRETED else 256, device=device)
    y = rotate(x)
    assert_close(y, expected(x), relative=1e-6 if INTERPRETED else 1e-3)
    assert_close(rotate(y, inverse=True), x, relative=2e-6)


def test_whole_attention_layer_of_a_decode_step(device):
    from kernels.paged_attention.cache import allocate, write
    from kernels.paged_attention.layer import decode_step
    from kernels.paged_attention.reference import attend
    from kernels.paged_attention.runs import Runs
    from kernels.paged_attention.stage import Staging
    from kernels.rms_norm.reference import rms_norm
    from kernels.rotary.reference import rotary, rotary_table

    size, page, kv_heads, heads, batch, rows = (64 if INTERPRETED else 256), 16, 2, 4, 2, 2
    staging, positions = Staging(page, 1, 100), torch.tensor([37, 70], device=device)
    table = 1 + torch.arange(batch * 8, device=device, dtype=torch.int32).view(batch, 8)
    pools, mirror = (allocate(20, 20, kv_heads, page, size, device) for _ in range(2))
    for b in range(batch):
        at = torch.arange(int(positions[b]), device=device)
        k, v = torch.randn(2, len(at), kv_heads, size, device=device)
        for each in (pools, mirror):
            write(each, k, v, table[b].long()[at // page], at % page)
    cos, sin = rotary_table(128, size // 4, 1e7, device)
    q_norm, k_norm = torch.randn(2, size, device=device) * 0.1
    parts = torch.randn(2, batch, rows, (heads + kv_heads) * 2 * size, device=device)
    y = decode_step(
        parts,
        pools,
        table,
        table,
        positions,
        staging,
        q_norm,
        k_norm,
        cos,
        sin,
        heads=heads,
        wide=True,
        runs=Runs(1, 1, 2),
    )

    mixed = (parts[0] + parts[1]).view(batch * rows, -1)
    q_gate, k, v = mixed.split([heads * 2 * size, kv_heads * size, kv_heads * size], dim=1)
    q, gate = q_gate.view(-1, heads, 2, size).unbind(2)
    where = (positions[:, None] + torch.arange(rows, device=device)).flatten()
    q = rotary(rms_norm(q, q_norm)[0], where, cos, sin).view(batch, rows, heads, size)
    k = rotary(rms_norm(k.view(-1, kv_heads, size), k_norm)[0], where, cos, sin)
    pages = table.long().repeat_interleave(rows, 0).gather(1, (where // page)[:, None])[:, 0]
    write(mirror, k, v.reshape(-1, kv_heads, size), pages, where % page)
    expected = attend(q, mirror, table, table, positions, staging) * torch.sigmoid(gate.view(batch, rows, heads, size))
    # The interpreter loses the carry when a float32 value rounds up to the next power of two in e4m3.
    assert_close(y, expected.flatten(2), relative=6e-2 if INTERPRETED else 6e-3)


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (3, 528), (17, 1024)])
def test_activation_codes_equal_the_reference(device, rows, columns):
    from kernels.nvfp4.quantize import quantize_activation
    from kernels.nvfp4.reference import quantize_activation as expected

    x = torch.randn(rows, columns, device=device) * 3
    x[0, :16] = 0
    codes, scales = quantize_activation(x, 0.0021)
    codes_expected, scales_expected = expected(x, 0.0021)
    assert_same_bits(codes, codes_expected, what="codes")
    assert_same_bits(scales.view(torch.uint8), scales_expected.view(torch.uint8), what="scales")


@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 256), (7, 70, 48), (33, 40, 272)])
def test_portable_nvfp4_product(device, m, n, k):
    from kernels.nvfp4.linear import triton_form
    from kernels.nvfp4.reference import linear, quantize

    matrix = quantize(torch.randn(n, k, device=device))
    x = torch.randn(m, k, device=device)
    assert_close(triton_form(x, matrix, wide=True), linear(x, matrix), relative=1e-3 if not INTERPRETED else 1e-5)
    if not INTERPRETED:
        x = x.bfloat16()
        assert_close(triton_form(x, matrix), linear(x, matrix), relative=4e-3)


def sampling_settings(batch, device, **changes):
    from kernels.sampling.reference import neutral

    settings = neutral(batch, device)
    return dataclasses.replace(
        settings, **{k: torch.tensor(v, device=device, dtype=getattr(settings, k).dtype) for k, v in changes.items()}
    )


def test_sampled_ids_equal_the_reference(device):
    from kernels.sampling.reference import sample as expected
    from kernels.sampling.sample import sample

    batch, vocabulary = (4, 1000) if INTERPRETED else (4, 248320)
    settings = sampling_settings(
        batch,
        device,
        temperature=[0.0, 1.0, 0.7, 1.3],
        top_k=[0, 20, 0, 50],
        top_p=[1.0, 0.95, 0.8, 1.0],
        min_p=[0.0, 0.0, 0.0, 0.05],
        repetition=[1.0, 1.2, 1.0, 1.0],
        presence=[0.0, 0.5, 1.5, 0.0],
        frequency=[0.0, 0.1, 0.0, 0.0],
        seed=[1, 2, 3, 2**40 + 4],
        position=[0, 5, 300000, 9],
    )
    for _ in range(1 if INTERPRETED else 20):
        logits = torch.randn(batch, vocabulary, device=device) * 3
        counts = torch.randint(0, 3, (batch, vocabulary), device=device, dtype=torch.int32)
        bitmask = torch.randint(-(2**31), 2**31 - 1, (batch, -(-vocabulary // 32)), device=device, dtype=torch.int32)
        assert (
            sample(logits, settings, counts, bitmask).tolist() == expected(logits, settings, counts, bitmask).tolist()
        )


def test_a_row_with_nothing_to_choose_from_says_so(device):
    from kernels.sampling.sample import sample

    logits = torch.full((2, 100), float("nan"), device=device)
    logits[1, 7] = 1.0
    assert sample(logits, sampling_settings(2, device, temperature=[1.0, 1.0])).tolist() == [-1, 7]


def test_spans_of_pages_in_both_stages(device):
    from kernels.page_spans.gather import gather
    from kernels.page_spans.reference import gather as expected
    from kernels.paged_attention.cache import PageMemory, allocate, demote, write

    page, size = 64, 256
    pages, kv_heads, place = 3, 2, torch.arange(3 * page, device=device)
    pools = allocate(pages, pages, kv_heads, page, size, device)
    drawn = torch.randn(2, pages * page, kv_heads, size, device=device)
    write(pools, *drawn, place // page, place % page)
    demote(pools, torch.arange(pages, device=device), torch.tensor([1, 2, 0], device=device))
    # Two spans: a whole page, one in three bits, a part of one; and a part of one in three bits.
    rows = [[2, -1, 0, page], [-1, 0, page, page], [1, -1, 2 * page, 3], [-1, 2, 2 * page + 3, page - 1]]
    table, tokens = torch.tensor(rows, dtype=torch.int32, device=device), 3 * page + 2
    one_stage = PageMemory(pools.keys, pools.values)
    for span in ((pools, table, tokens, torch.float32), (one_stage, table[:1], page, torch.float32)):
        for mine, theirs in zip(gather(*span), expected(*span), strict=True):
            assert_same_bits(mine, theirs)

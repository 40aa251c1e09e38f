"""What each gate proves, on the GPU of this machine. A check returns what it proved and raises where it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.step_checks import step_graph, step_overlap, step_staged

DEVICE = "cuda"
ROWS = (1, 3, 8, 9, 16, 17, 32, 33, 64, 100, 128)


def _nvfp4_matrix(rows: int, columns: int) -> Any:
    import torch

    from kernels.nvfp4.format import Nvfp4Matrix

    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=DEVICE)
    scales = torch.randint(1, 127, (rows, columns // 16), dtype=torch.uint8, device=DEVICE)
    return Nvfp4Matrix(codes, scales.view(torch.float8_e4m3fn), torch.rand(rows, device=DEVICE) * 1e-4 + 1e-4)


def _sums(kind: str, x: Any, packed: tuple[Any, Any, Any], rows: int, splits: int, k_warps: int) -> Any:
    from kernels.native.gemm import launch
    from kernels.testing import poisoned

    y = poisoned(splits, x.shape[0], rows, device=DEVICE)
    codes, scales, multiplier = packed
    sizes: dict[str, Any] = {"rows": rows, "columns": x.shape[1], "splits": splits, "k_warps": k_warps}
    launch(kind, x, codes, scales, multiplier, y, **sizes)
    return y


def _products(kind: str, packed: tuple[Any, Any, Any], exact: Any, dtype: Any) -> str:
    import torch

    from kernels.native.gemm import STREAM_TOKENS, WIDE, least_splits
    from kernels.testing import assert_close, assert_same_bits

    rows, columns = exact.shape
    x = torch.randn(ROWS[-1], columns, device=DEVICE).to(dtype)
    expected = x.double() @ exact.T
    for count in [count for count in ROWS if count <= STREAM_TOKENS]:
        for k_warps in (16, 8, 4) if count <= 8 else (8, 4) if count <= 16 else (4,):
            y = _sums(kind, x[:count], packed, rows, least_splits(kind, columns, count), k_warps)
            assert_close(y.sum(0), expected[:count], relative=3e-6, what=f"{count} rows, {k_warps} warps along K")
    for splits, k_warps in ((4, 4), (1, WIDE), (2, WIDE), (3, WIDE), (8, WIDE)):
        together = _sums(kind, x, packed, rows, splits, k_warps)
        for count in ROWS:
            y = _sums(kind, x[:count], packed, rows, splits, k_warps)
            # One accumulator of wide_gemm adds up to all of K, where stream_gemm has one a warp.
            assert_close(y.sum(0), expected[:count], relative=6e-6, what=f"{count} rows in {splits} parts")
            assert_same_bits(y, together[:, :count].contiguous(), what=f"{count} of {ROWS[-1]} rows in {splits} parts")
    return f"{ROWS} rows within 3e-6 (few rows) and 6e-6 of float64; a row's bits do not depend on how many there are"


def nvfp4_stream() -> str:
    import torch

    from kernels.native.gemm import dequantize
    from kernels.nvfp4.pack import pack
    from kernels.nvfp4.reference import unscaled
    from kernels.testing import assert_close, poisoned

    matrix = _nvfp4_matrix(4176, 5120)
    packed = pack(matrix.codes, matrix.scales, matrix.multiplier)
    w = poisoned(4176, 5120, dtype=torch.bfloat16, device=DEVICE)
    dequantize(packed.codes, packed.scales, w)
    assert_close(w, unscaled(matrix), relative=0.0, what="unpacked weights")
    exact = unscaled(matrix).double() * matrix.multiplier.double()[:, None]
    said = _products("nvfp4", (packed.codes, packed.scales, packed.multiplier), exact, torch.bfloat16)
    return f"{said}; unpacked weights exact"


def fp8_stream() -> str:
    import torch

    from kernels.fp8.pack import pack, unpack
    from kernels.fp8.reference import dequantize, quantize
    from kernels.testing import assert_same_bits

    matrix = quantize(torch.randn(4176, 5120, device=DEVICE))
    packed = pack(matrix.values, matrix.multiplier)
    assert_same_bits(unpack(packed.values, 4176, 5120).view(torch.uint8), matrix.values.view(torch.uint8))
    exact = dequantize(matrix).double()
    return _products("fp8", (packed.values, None, packed.multiplier), exact, torch.float16)


def _delta_inputs(batch: int, rows: int) -> tuple[Any, dict[str, Any]]:
    import torch

    heads, channels, slots = 48, 10240, batch * (rows + 1)
    f32: dict[str, Any] = {"device": DEVICE}
    tensors = {
        "state": torch.randn(slots, heads, 128, 128, **f32) * 0.1,
        "state_in": torch.arange(batch, **f32),
        "state_out": torch.arange(batch, slots, **f32).view(batch, rows),
        "conv": torch.randn(batch, 8, channels, **f32).bfloat16(),
        "conv_slot": torch.arange(batch, **f32).flip(0).contiguous(),
        "positions": torch.randint(0, 200000, (batch,), **f32),
        "conv_weight": torch.randn(4, channels, **f32) * 0.3,
        "a_log": torch.rand(heads, **f32),
        "dt_bias": torch.randn(heads, **f32),
        "norm_weight": torch.rand(128, **f32) + 0.5,
    }
    return torch.randn(batch, rows, channels + heads * 128 + 2 * heads, **f32), tensors


def delta_step() -> str:

    from kernels.gated_delta_rule.reference import decode_step as expected
    from kernels.gated_delta_rule.step import decode_step
    from kernels.testing import assert_close, assert_same_bits

    for batch, rows in ((1, 1), (3, 1), (2, 3)):
        mixed, tensors = _delta_inputs(batch, rows)
        for gates in (None, mixed[..., -96:].bfloat16().contiguous()):
            exact = mixed.double()
            if gates is not None:
                exact[..., -96:] = gates.double()
            mine = {k: v.clone() for k, v in tensors.items()}
            wide = {k: v.double() if v.is_floating_point() and k != "conv" else v.clone() for k, v in tensors.items()}
            y = decode_step(mixed, **mine, key_heads=16, gates=gates)
            assert_close(y, expected(exact, **wide, key_heads=16), relative=4e-3, what=f"{batch} x {rows} rows")
            assert_close(mine["state"], wide["state"], relative=2e-6, what="states")
            assert_same_bits(mine["conv"], wide["conv"], what="inputs of the convolution")
    mixed, tensors = _delta_inputs(3, 1)
    together = decode_step(mixed, **{k: v.clone() for k, v in tensors.items()}, key_heads=16)
    for b in range(3):
        one = {k: v.clone() for k, v in tensors.items()}
        for name in ("state_in", "state_out", "conv_slot", "positions"):
            one[name] = one[name][b : b + 1].contiguous()
        assert_same_bits(decode_step(mixed[b : b + 1], **one, key_heads=16), together[b : b + 1], what=f"sequence {b}")
    return "outputs within 4e-3 and states within 2e-6 of float64; a sequence's bits do not depend on company"


def delta_chunk() -> str:
    import torch

    from kernels.gated_delta_rule import reference
    from kernels.gated_delta_rule.chunk import chunked, gates
    from kernels.gated_delta_rule.reference import normalise
    from kernels.ragged import make_ragged
    from kernels.testing import assert_close, assert_same_bits

    lengths = (64, 1, 129, 300)
    tokens, heads = sum(lengths), 48
    q, k = (x.contiguous() for x in normalise(*torch.randn(2, tokens, 16, 128, device=DEVICE)))
    v, first = torch.randn(tokens, heads, 128, device=DEVICE), torch.randn(6, heads, 128, 128, device=DEVICE) * 0.1
    small = torch.randn(tokens, 2 * heads, device=DEVICE) * 4.0
    a_log, dt_bias = torch.rand(heads, device=DEVICE) - 3.0, torch.randn(heads, device=DEVICE)
    g, beta = gates(small, a_log, dt_bias)
    g64, beta64 = reference.gates(small[:, heads:].double(), small[:, :heads].double(), a_log, dt_bias)
    assert_close(g, g64, relative=1e-6, what="g")
    assert_close(beta, beta64, relative=1e-6, what="beta")
    # The last sequence leaves its states after 64 and 256 rows in slots 4 and 5.
    rows = make_ragged(lengths, range(4), [0] * 4, DEVICE, kept=[{}, {}, {}, {64: 4, 256: 5}])
    state, wide = first.clone(), first.double()
    o = chunked(q, k, v, g, beta, state, rows)
    o_wide = reference.chunked_ragged(q.double(), k.double(), v.double(), g64, beta64, wide, rows)
    assert_close(o, o_wide, relative=1e-2, what="outputs")
    assert_close(state, wide, relative=1e-2, what="states")
    # The last one alone, in two steps that meet where its state was kept.
    alone, parts, begin = first.clone(), [], sum(lengths[:-1])
    for length, position in ((256, 0), (44, 256)):
        at = slice(begin + position, begin + position + length)
        part = make_ragged([length], [3], [position], DEVICE)
        parts.append(chunked(q[at], k[at], v[at], g[at], beta[at], alone, part))
        if not position:
            assert_same_bits(alone[3], state[5], what="a state kept inside a step")
    assert_same_bits(torch.cat(parts), o[begin:].contiguous(), what="a sequence alone, in two steps")
    assert_same_bits(alone[3], state[3], what="its last state")
    return f"lengths {lengths} within 1e-2 of float64; bits of rows and states do not depend on company or cuts"


def conv() -> str:
    import torch

    from kernels.causal_conv1d.conv import causal_conv1d
    from kernels.causal_conv1d.reference import causal_conv1d as expected
    from kernels.ragged import make_ragged
    from kernels.testing import assert_close, assert_same_bits

    lengths = (1, 2, 67, 128)
    rows = make_ragged(lengths, [3, 0, 2, 1], [5, 64, 0, 128], DEVICE, kept=[{}, {}, {64: 4}, {64: 5, 128: 6}])
    x, weight = torch.randn(sum(lengths), 10240, device=DEVICE), torch.randn(4, 10240, device=DEVICE)
    for dtype in (torch.float32, torch.bfloat16):
        ring = torch.randn(7, 8, 10240, device=DEVICE).to(dtype)
        theirs = ring.clone()
        assert_close(causal_conv1d(x, weight, ring, rows), expected(x, weight, theirs, rows), relative=1e-5)
        assert_same_bits(ring, theirs)
    return "ragged sequences within 1e-5; kept inputs equal in bits"


def norms() -> str:
    import torch

    from kernels.rms_norm.norm import gated_rms_norm, rms_norm
    from kernels.rms_norm.reference import gated_rms_norm as gated_expected
    from kernels.rms_norm.reference import rms_norm as expected
    from kernels.testing import assert_close, assert_same_bits

    x, h, weight = (
        torch.randn(5, 5120, device=DEVICE),
        torch.randn(5, 5120, device=DEVICE),
        torch.randn(5120, device=DEVICE),
    )
    y, total = rms_norm(x.to(torch.bfloat16), weight * 0.1, residual=h, dtype=torch.bfloat16)
    wanted = expected(x.to(torch.bfloat16).double(), weight.double() * 0.1, residual=h.double())
    assert_close(y, wanted[0], relative=4e-3, what="rows under a norm")
    assert_close(total, wanted[1], relative=1e-6, what="sums")
    one = rms_norm(x[2:3].to(torch.bfloat16), weight * 0.1, residual=h[2:3].contiguous(), dtype=torch.bfloat16)
    assert_same_bits(one[0], y[2:3].contiguous(), what="a row alone")
    out, wide = torch.randn(7, 48, 128, device=DEVICE), torch.randn(7, 16512, device=DEVICE).to(torch.bfloat16)
    gate = wide[:, 10240:16384].view(7, 48, 128)
    y = gated_rms_norm(out, gate, weight[:128], dtype=torch.bfloat16)
    assert_close(
        y, gated_expected(out.double(), gate.double(), weight[:128].double()), relative=4e-3, what="gated heads"
    )
    return "rows and gated heads within 4e-3 of float64, sums within 1e-6; a row's bits do not depend on company"


def attention_step() -> str:
    import torch

    from kernels.paged_attention.cache import allocate, write
    from kernels.paged_attention.layer import decode_step
    from kernels.paged_attention.reference import attend
    from kernels.paged_attention.stage import Staging
    from kernels.rms_norm.reference import rms_norm
    from kernels.rotary.reference import rotary, rotary_table
    from kernels.testing import assert_close, assert_same_bits

    heads, kv_heads, size, page, batch = 24, 4, 256, 64, 3
    staging = Staging(page, 0, 1 << 20)
    positions = torch.tensor([0, 63, 700], device=DEVICE)
    table = 1 + torch.randperm(batch * 12, device=DEVICE).to(torch.int32).view(batch, 12)
    pools = allocate(1 + batch * 12, 1, kv_heads, page, size, DEVICE)
    for b in range(batch):
        at = torch.arange(int(positions[b]), device=DEVICE)
        k, v = torch.randn(2, len(at), kv_heads, size, device=DEVICE)
        write(pools, k, v, table[b].long()[at // page], at % page)
    cos, sin = rotary_table(1024, 64, 1e7, DEVICE)
    q_norm, k_norm = torch.randn(2, size, device=DEVICE) * 0.1
    mixed = torch.randn(1, batch, 1, (heads + kv_heads) * 2 * size, device=DEVICE)
    rest: tuple[Any, ...] = (staging, q_norm, k_norm, cos, sin)
    y = decode_step(mixed, pools, table, table, positions, *rest, heads=heads)
    flat = mixed[0, :, 0]
    q_gate, k_new = flat[:, : heads * 2 * size], flat[:, heads * 2 * size : (heads * 2 + kv_heads) * size]
    q, gate = q_gate.view(batch, heads, 2, size).unbind(2)
    q = rotary(rms_norm(q, q_norm)[0], positions, cos, sin)
    expected = attend(q[:, None], pools, table, table, positions, staging) * torch.sigmoid(gate[:, None])
    assert_close(y, expected.flatten(2), relative=6e-3, what="attention over the pages as written")
    k_new = rotary(rms_norm(k_new.view(batch, kv_heads, size), k_norm)[0], positions, cos, sin)
    mirror = allocate(1 + batch * 12, 1, kv_heads, page, size, DEVICE)
    pages = table.long().gather(1, (positions // page)[:, None])[:, 0]
    write(mirror, k_new, k_new, pages, positions % page)
    stored, wanted = (p.keys[pages, :, positions % page].float() for p in (pools, mirror))
    assert_close(stored, wanted, relative=6e-2, what="keys as written")  # FP8 ties may round either way
    for b in range(batch):
        own = slice(b, b + 1)
        one = decode_step(mixed[:, own], pools, table[own], table[own], positions[own], *rest, heads=heads)
        assert_same_bits(one, y[b : b + 1], what=f"sequence {b} alone")
    return "contexts 1, 64, 701 within 6e-3 of float32; a sequence's bits do not depend on company"


def staged_attention() -> str:
    import torch

    from kernels.paged_attention.attend import attend
    from kernels.paged_attention.cache import allocate, demote, read_three_bit, write
    from kernels.paged_attention.launch import demote_on_device
    from kernels.paged_attention.reference import attend as expected
    from kernels.paged_attention.stage import Staging
    from kernels.testing import assert_close, assert_same_bits

    batch, page, per = 3, 64, 90
    pools, plain = (allocate(1 + batch * per, 1 + batch * per, 4, page, 256, DEVICE) for _ in range(2))
    table = 1 + torch.randperm(batch * per, device=DEVICE).to(torch.int32).view(batch, per)
    for b in range(batch):
        at = torch.arange(5700, device=DEVICE)
        k, v = torch.randn(2, 5700, 4, 256, device=DEVICE)
        k[:, :, ::7] *= 3.0
        for each in (pools, plain):
            write(each, k, v, table[b].long()[at // page], at % page)
    every = table.flatten().long()
    demote_on_device(pools, every, every.flip(0).contiguous())
    demote(plain, every, every.flip(0))
    other = every.flip(0).to(torch.int32).view(batch, per)
    for n in (1, 77, batch * per):
        for mine, theirs in zip(read_three_bit(pools, n), read_three_bit(plain, n), strict=True):
            assert_close(
                mine, theirs, relative=1e-2, what="pages as encoded"
            )  # a value on a threshold may go either way
    q, where = torch.randn(batch, 2, 24, 256, device=DEVICE) * 3, torch.tensor([5690, 300, 0], device=DEVICE)
    for staging in (Staging(64, 1, 2), Staging(64, 4, 32), Staging(64, 0, 1)):
        y = attend(q, pools, table, other, where, staging)
        assert_close(y, expected(q, pools, table, other, where, staging), relative=2e-3, what=f"{staging}")
        for b in range(batch):
            own = slice(b, b + 1)
            one = attend(q[own, 1:], pools, table[own], other[own], where[own] + 1, staging)
            assert_same_bits(one, y[own, 1:].contiguous(), what=f"row 1 of sequence {b} alone")
    return (
        "contexts up to 5,692, FP8 and three-bit pages, within 2e-3 of float32; a row's bits do not depend on company"
    )


def prefill_attention() -> str:
    import torch

    from kernels.page_spans import reference as spans_reference
    from kernels.page_spans.gather import gather
    from kernels.paged_attention.cache import allocate, demote, write
    from kernels.paged_attention.prefill import attend_flash, attend_masked
    from kernels.testing import assert_close, assert_same_bits

    def flash(parts: list[tuple[Any, Any, Any]]) -> Any:
        rows, spans = ([len(part[which]) for part in parts] for which in (0, 1))
        q_starts, k_starts = (torch.tensor([0, *n]).cumsum(0).int().to(DEVICE) for n in (rows, spans))
        q, k, v = (torch.cat(each) for each in zip(*parts, strict=True))
        return torch.split(attend_flash(q, k, v, q_starts, k_starts, max(rows), max(spans)), rows)

    parts = []
    for new, span in ((1, 1), (5, 133), (200, 200), (64, 1000), (300, 300)):
        k, v = torch.randn(2, span, 4, 256, device=DEVICE).bfloat16()
        parts.append((torch.randn(new, 24, 256, device=DEVICE).bfloat16(), k, v))
    together = flash(parts)
    for part, found in zip(parts, together, strict=True):
        what = f"{len(part[0])} rows of {len(part[1])}"
        assert_close(found, attend_masked(*part), relative=1e-2, what=what)
        assert_same_bits(flash([part])[0], found, what=f"{what} alone")
    q, k, v = parts[-1]
    assert_same_bits(torch.cat([flash([(q[:128], k[:128], v[:128])])[0], flash([(q[128:], k, v)])[0]]), together[-1])

    pools, place, numbers = allocate(9, 9, 4, 64, 256, DEVICE), torch.arange(576, device=DEVICE), torch.arange(9)
    k, v = torch.randn(2, 576, 4, 256, device=DEVICE)
    write(pools, k, v, place // 64, place % 64)
    demote(pools, numbers.to(DEVICE), numbers.flip(0).to(DEVICE))
    # Pages of FP8 and of three bits in turn; the last of each kind ends early.
    first = torch.where(numbers % 2 == 1, -1, numbers)
    table = torch.stack([first, numbers, numbers * 64, torch.full((9,), 64)], 1).int()
    table[8, 3], table[7, 3] = 5, 63
    table[8, 2] -= 1
    asked = pools, table.to(DEVICE), 516, torch.bfloat16
    for mine, theirs in zip(gather(*asked), spans_reference.gather(*asked), strict=True):
        assert_same_bits(mine, theirs, what="keys and values of pages in both stages")
    return (
        "rows of contexts up to 1,000 within 1e-2 of float32; their bits do not depend on company or cuts; keys and "
        "values of pages in both stages equal in bits"
    )


def sampling() -> str:
    import dataclasses

    import torch

    from kernels.sampling.reference import neutral
    from kernels.sampling.reference import sample as expected
    from kernels.sampling.sample import sample

    plain = neutral(4, DEVICE)
    changes: dict[str, list[Any]] = {
        "temperature": [0.0, 1.0, 0.7, 1.3],
        "top_k": [0, 20, 0, 50],
        "top_p": [1.0, 0.95, 0.8, 1.0],
        "min_p": [0.0, 0.0, 0.0, 0.05],
        "repetition": [1.0, 1.2, 1.0, 1.0],
        "seed": [1, 2, 3, 2**40 + 4],
        "position": [0, 5, 300000, 9],
    }
    made = {k: torch.tensor(v, device=DEVICE, dtype=getattr(plain, k).dtype) for k, v in changes.items()}
    settings = dataclasses.replace(plain, **made)
    for _ in range(5):
        logits = torch.randn(4, 248320, device=DEVICE) * 3
        counts = torch.randint(0, 3, logits.shape, device=DEVICE, dtype=torch.int32)
        bits = torch.randint(-(2**31), 2**31 - 1, (4, 7760), device=DEVICE, dtype=torch.int32)
        mine, theirs = sample(logits, settings, counts, bits), expected(logits, settings, counts, bits)
        if mine.tolist() != theirs.tolist():
            raise AssertionError(f"drew {mine.tolist()}, the plain form {theirs.tolist()}")
    return "20 draws equal those of the plain form"


CHECKS: dict[str, Callable[[], str]] = {
    "nvfp4.stream": nvfp4_stream,
    "fp8.stream": fp8_stream,
    "gated_delta_rule.step": delta_step,
    "gated_delta_rule.chunk": delta_chunk,
    "causal_conv1d": conv,
    "rms_norm": norms,
    "paged_attention.step": attention_step,
    "paged_attention.staged": staged_attention,
    "attention.prefill": prefill_attention,
    "step.overlap": step_overlap,
    "step.graph": step_graph,
    "step.staged": step_staged,
    "sampling": sampling,
}

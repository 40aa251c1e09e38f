"""The plain forms: against their definitions, against each other, and against the traps that others fell into."""

from __future__ import annotations

import pytest
import torch

from kernels.ragged import make_ragged
from kernels.testing import assert_close, assert_same_bits, poisoned


def test_a_tolerance_that_is_missed_fails():
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(torch.ones(3) * 1.01, torch.ones(3), relative=1e-3)
    with pytest.raises(AssertionError, match="2 values were not written"):
        assert_close(torch.cat([torch.ones(1), poisoned(2)]), torch.ones(3), relative=1.0)


# --- gated delta rule


def gdn(tokens, gate, dtype=torch.float64):
    from kernels.gated_delta_rule.reference import normalise

    q, k = normalise(*torch.randn(2, 2, tokens, 2, 16, dtype=dtype))
    v = torch.randn(2, tokens, 6, 8, dtype=dtype)
    return (
        q,
        k,
        v,
        -gate * torch.rand(2, tokens, 6, dtype=dtype),
        torch.rand(2, tokens, 6, dtype=dtype),
        torch.randn(2, 6, 16, 8, dtype=dtype),
    )


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 63, 64, 65, 129])
@pytest.mark.parametrize("gate", [0.0, 1.0, 20.0])
def test_chunks_equal_the_recurrence(tokens, gate):
    from kernels.gated_delta_rule.reference import chunked, recurrent

    inputs = gdn(tokens, gate)
    o, states = recurrent(*inputs)
    o_chunked, ends = chunked(*inputs)
    assert o_chunked.shape == o.shape
    if tokens:
        assert_close(o_chunked, o, relative=1e-12)
        assert_close(ends[:, -1], states[:, -1], relative=1e-12)


def test_a_prompt_cut_at_64_gives_the_same_state():
    from kernels.gated_delta_rule.reference import chunked

    q, k, v, g, beta, state = gdn(130, 1.0, torch.float32)
    _, whole = chunked(q, k, v, g, beta, state)
    _, first = chunked(*(x[:, :64] for x in (q, k, v, g, beta)), state)
    _, rest = chunked(*(x[:, 64:] for x in (q, k, v, g, beta)), first[:, -1])
    assert_same_bits(first[:, 0], whole[:, 0])
    assert_same_bits(rest[:, -1], whole[:, -1])


def step_inputs(batch, rows, dtype=torch.float32):
    heads, key_heads, size = 4, 2, 8
    channels = (2 * key_heads + heads) * size
    fixed = {
        "conv_weight": torch.randn(4, channels, dtype=dtype),
        "a_log": torch.rand(heads, dtype=dtype),
        "dt_bias": torch.randn(heads, dtype=dtype),
        "norm_weight": torch.rand(size, dtype=dtype) + 0.5,
        "key_heads": key_heads,
    }
    state = torch.randn(batch * (rows + 1), heads, size, size, dtype=dtype)
    conv = torch.randn(batch, 8, channels, dtype=dtype)
    return torch.randn(batch, rows, channels + heads * size + 2 * heads, dtype=dtype), state, conv, fixed


def test_verified_rows_equal_plain_steps_and_leave_every_state():
    from kernels.gated_delta_rule.reference import decode_step

    mixed, state, conv, fixed = step_inputs(2, 3)
    sequence, out_slots, positions = torch.arange(2), torch.arange(2, 8).view(2, 3), torch.tensor([0, 41])
    s1, c1, s2, c2 = state.clone(), conv.clone(), state.clone(), conv.clone()
    together = decode_step(mixed, s1, sequence, out_slots, c1, sequence, positions, **fixed)
    slot = sequence
    for t in range(3):
        alone = decode_step(
            mixed[:, t : t + 1], s2, slot, out_slots[:, t : t + 1], c2, sequence, positions + t, **fixed
        )
        assert_same_bits(alone[:, 0], together[:, t].contiguous())
        slot = out_slots[:, t]
    assert_same_bits(s1, s2)
    assert_same_bits(c1, c2)


def test_a_rejected_draft_leaves_no_trace_in_the_ring():
    from kernels.gated_delta_rule.reference import decode_step

    mixed, state, conv, fixed = step_inputs(1, 3)
    zero, kept = torch.zeros(1, dtype=torch.int64), torch.tensor([[0]])
    accepted, drafts = conv.clone(), conv.clone()
    position = torch.tensor([10])
    decode_step(
        mixed, state.clone(), zero, torch.full((1, 3), -1), drafts, zero, position, **fixed
    )  # rows 11 and 12 are rejected
    decode_step(mixed[:, :1], state.clone(), zero, kept, accepted, zero, position, **fixed)
    after = [
        decode_step(mixed[:, 1:2], state.clone(), zero, kept, ring, zero, position + 1, **fixed)
        for ring in (accepted, drafts)
    ]
    assert_same_bits(after[0], after[1])


def test_a_ring_too_small_for_the_drafts_is_refused():
    from kernels.gated_delta_rule.reference import decode_step

    mixed, state, conv, fixed = step_inputs(1, 3)
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="a ring of 4 inputs cannot take 3 rows: it needs 6"):
        decode_step(mixed, state, zero, torch.full((1, 3), -1), conv[:, :4], zero, zero, **fixed)


def test_the_fused_step_refuses_rows_that_four_values_do_not_divide():
    from kernels.gated_delta_rule.step import decode_step

    zero, heads = torch.zeros(1, dtype=torch.int64), 3
    mixed, state = torch.zeros(1, 1, 9 * 128 + 2 * heads), torch.zeros(1, heads, 128, 128)
    conv = torch.zeros(1, 8, 6 * 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="rows of 1158 inputs do not begin where four can be read at once"):
        decode_step(mixed, state, zero, zero[:, None], conv, zero, zero, *[torch.zeros(1)] * 4, key_heads=1)


# --- convolution, norms, rotary


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_a_sequence_convolved_in_two_parts_equals_the_whole(cut):
    from kernels.causal_conv1d.reference import causal_conv1d

    x, weight, rings = torch.randn(9, 5), torch.randn(4, 5), torch.zeros(2, 1, 8, 5)
    whole = causal_conv1d(x, weight, rings[0], make_ragged([9], [0], [0]))
    first = causal_conv1d(x[:cut], weight, rings[1], make_ragged([cut], [0], [0]))
    second = causal_conv1d(x[cut:], weight, rings[1], make_ragged([9 - cut], [0], [cut]))
    assert_same_bits(torch.cat([first, second]), whole)
    last = (torch.arange(3) + 6) % 8
    assert_same_bits(rings[1, 0, last], rings[0, 0, last])


def test_block_norms_are_zero_centred_and_the_gated_one_is_not():
    from kernels.rms_norm.reference import gated_rms_norm, rms_norm

    x, zero = torch.randn(2, 32), torch.zeros(32)
    assert_close(rms_norm(x, zero)[0].square().mean(-1), torch.ones(2), relative=1e-4)
    assert not gated_rms_norm(x, x, zero).any()


def test_rotary_turns_pairs_and_leaves_the_rest():
    from kernels.rotary.reference import rotary, rotary_table

    cos, sin = rotary_table(300_000, 64, 1e7)
    x = torch.randn(2, 1, 256)
    y = rotary(x, torch.tensor([0, 262_143]), cos, sin)
    assert_same_bits(y[0], x[0])
    assert_same_bits(y[1, :, 64:], x[1, :, 64:])
    assert_close(y[1, 0, [0, 32]].norm(), x[1, 0, [0, 32]].norm(), relative=1e-6)
    angle = torch.tensor(262_143.0, dtype=torch.float64)
    assert_close(y[1, 0, 0], x[1, 0, 0] * angle.cos() - x[1, 0, 32] * angle.sin(), relative=1e-5)


# --- TurboQuant and the staged cache


def test_turboquant_error_is_that_of_the_paper():
    from kernels.turboquant.reference import decode, encode, rotate, unrotate

    x = torch.randn(2000, 256)
    y = rotate(x)
    assert_close(unrotate(y), x, relative=1e-6)
    keys, values = decode(encode(y, "unbiased")), decode(encode(y, "least_squares"))
    assert 0.033 < float((values - y).square().sum() / y.square().sum()) < 0.036
    assert abs(float((keys * y).sum(-1).div(y.square().sum(-1)).mean()) - 1) < 1e-3
    assert abs(float((values * y).sum(-1).div(y.square().sum(-1)).mean()) - 0.966) < 3e-3


def test_outlier_channels_cost_nothing_after_the_rotation():
    from kernels.turboquant.reference import decode, encode, rotate

    x = torch.randn(500, 256)
    x[:, 17] += 40.0
    x[:, 200] -= 25.0
    y = rotate(x)
    assert float((decode(encode(y, "least_squares")) - y).square().sum() / y.square().sum()) < 0.06


def test_turboquant_takes_98_bytes_a_vector_and_zero_stays_zero():
    from kernels.turboquant.reference import decode, encode

    encoded = encode(torch.zeros(1, 256), "unbiased")
    assert encoded.nbytes == 98
    assert not decode(encoded).any()


def test_packing_gives_back_every_code_and_centroids_fit_a_byte():
    from kernels.turboquant.reference import CENTROID_STEPS, pack, unpack, values_of

    codes = torch.randint(0, 8, (3, 5, 64), dtype=torch.uint8)
    packed = pack(codes)
    assert packed.shape == (3, 5, 24)
    assert torch.equal(unpack(packed), codes)
    first, last = int(codes[1, 2, 3]), int(codes[1, 2, 3 + 48])
    assert int(packed[1, 2, 1]) >> 4 == first | last >> 2 << 3
    steps = values_of(torch.arange(8, dtype=torch.uint8)) * 49
    assert_close(steps, torch.tensor([12.0, 37, 66, 105, -12, -37, -66, -105]), relative=1e-6)
    assert max(CENTROID_STEPS) < 128


@pytest.mark.parametrize("pages", [1, 2, 16, 17, 48, 49, 112, 113, 128, 129, 512])
def test_runs_cover_each_page_once(pages):
    from kernels.paged_attention.runs import runs_of

    runs = runs_of(64)
    sizes = [2] * 8 + [4] * 8 + [8] * 8 + [16] * 30
    used = sizes[: runs.count(pages)]
    assert sum(used) >= pages
    assert sum(used[:-1]) < pages
    assert runs_of(512).constants == {"RUN": 1, "LEVEL_RUNS": 8, "LEVELS": 4, "ANCHORS": 0, "RECENT": 0}


@pytest.mark.parametrize("pages", [1, 36, 37, 60, 200, 513])
def test_recent_pages_have_runs_of_their_own_once_others_are_stale(pages):
    from kernels.paged_attention.runs import runs_of
    from kernels.paged_attention.stage import Staging

    staging = Staging(64, 4, 32)
    runs, whole = runs_of(64, staging), runs_of(64)
    apart = runs.recent_runs(pages)
    assert apart == (8 if any(not staging.is_fp8(pages * 64 - 1, page) for page in range(pages)) else 0)
    if not apart:
        assert runs.count(pages) == whole.count(pages)
        return
    sizes = [4] * 4 + [8] * 4 + [16] * 30
    others = runs.count(pages) - apart
    assert sum(sizes[:others]) >= pages - 32
    assert others >= whole.count(36)  # of shorter contexts in the same batch


@pytest.mark.parametrize("kind", ["keys", "values"])
def test_codes_of_a_page_stand_as_lanes_want_them(kind):
    from kernels.paged_attention.cache import operand_order

    order, places = operand_order(kind, 64, 256, torch.device("cpu"))
    assert torch.equal(order.flatten()[places], torch.arange(64 * 256))
    group, step, lane, part, i = torch.meshgrid(*(torch.arange(n) for n in (4, 4, 32, 4, 8)), indexing="ij")
    g, t = lane // 4, lane % 4
    along = step % 2 * 32 + i // 4 * 16 + t * 4 + i % 4
    tokens = {"keys": part * 16 + g // 2 * 4 + step // 2 * 2 + g % 2, "values": along}[kind]
    dimensions = {"keys": group * 64 + along, "values": group * 64 + part * 16 + step // 2 * 8 + g}[kind]
    assert torch.equal(order.view(4, 4, 32, 4, 8), tokens * 256 + dimensions)
    assert torch.equal(operand_order(kind, 16, 32, torch.device("cpu"))[0], torch.arange(512)[None])


@pytest.mark.parametrize("committed", [0, 63, 64, 700, 5000])
def test_stages_are_a_function_of_position_and_copies_live_long_enough(committed):
    from kernels.paged_attention.stage import Staging

    staging = Staging(page_tokens=64, anchors=2, recent=3)
    for page in range(committed // 64 + 1):
        for ahead in range(5):  # rows of one verification
            position = committed + ahead
            own = position // 64
            assert staging.is_fp8(position, page) == (page < 2 or own - page < 3)
            if not staging.is_fp8(position, page) and staging.is_fp8(committed, page):
                assert own == committed // 64 + 1, "two rows of a verification are in neighbouring pages"
        assert staging.three_bit_pages(committed) == sum(
            not staging.is_fp8(committed, page) for page in range(committed // 64 + 1)
        )


def staged(positions, rows, size=32, page=16, kv_heads=2):
    from kernels.paged_attention.cache import allocate, demote, write

    pools = allocate(64, 64, kv_heads, page, size)
    table = 1 + torch.arange(24, dtype=torch.int32).view(2, 12)
    length = max(positions) + rows
    k, v = torch.randn(2, 2, length, kv_heads, size)
    for b in range(2):
        at = torch.arange(length)
        write(pools, k[b], v[b], table[b].long()[at // page], at % page)
    demote(pools, table.flatten().long(), table.flatten().long())
    return pools, table, k, v


def test_attention_is_close_to_plain_attention_over_unquantised_pages():
    from kernels.paged_attention.reference import attend
    from kernels.paged_attention.stage import Staging

    pools, table, k, v = staged([100, 37], 1)
    q = torch.randn(2, 1, 6, 32)
    positions = torch.tensor([100, 37])
    for recent, tolerance in ((100, 0.06), (1, 0.35)):
        y = attend(q, pools, table, table, positions, Staging(16, 1, recent))
        for b, n in ((0, 101), (1, 38)):
            kk, vv = (x[b, :n].repeat_interleave(3, 1).transpose(0, 1) for x in (k, v))
            plain = torch.softmax(q[b, 0][:, None] @ kk.transpose(1, 2) * 32**-0.5, -1) @ vv
            assert_close(y[b, 0], plain[:, 0], relative=tolerance)


def test_rows_of_a_verification_across_a_page_boundary_see_what_plain_decoding_sees():
    from kernels.paged_attention.reference import attend
    from kernels.paged_attention.stage import Staging

    pools, table, _, _ = staged([62, 30], 4)
    staging, q, positions = Staging(16, 1, 2), torch.randn(2, 4, 6, 32), torch.tensor([62, 30])
    together = attend(q, pools, table, table, positions, staging)
    for t in range(4):
        assert_same_bits(
            attend(q[:, t : t + 1], pools, table, table, positions + t, staging)[:, 0], together[:, t].contiguous()
        )


# --- FP8


@pytest.mark.parametrize("by", ["matrix", "row", "block"])
def test_fp8_keeps_weights_within_four_percent(by):
    from kernels.fp8.reference import dequantize, linear, quantize

    w, x = torch.randn(128, 256), torch.randn(3, 256)
    matrix = quantize(w, by=by)
    assert_close(dequantize(matrix), w, relative=0.04)
    assert_close(linear(x, matrix), x @ w.T, relative=0.06)


def test_fp8_packing_keeps_every_value_once():
    from kernels.fp8.pack import pack

    values = torch.arange(16 * 128, dtype=torch.int32).remainder(251).to(torch.uint8).view(16, 128)
    packed = pack(values.view(torch.float8_e4m3fn), torch.ones(16)).values
    # lane 4 g + t of step s: rows g and g + 8, columns 64 s + 16 t …
    assert packed[0, 1, 1, 4 * 3 + 2].tolist() == values[3 + 8, 64 + 32 : 64 + 48].tolist()


# --- sampling


def settings(**changes):
    import dataclasses

    from kernels.sampling.reference import neutral

    base = neutral(1)
    return dataclasses.replace(base, **{k: torch.tensor([v], dtype=getattr(base, k).dtype) for k, v in changes.items()})


def test_greedy_takes_the_lowest_id_of_a_tie():
    from kernels.sampling.reference import sample

    assert sample(torch.tensor([[1.0, 3.0, 3.0]]), settings()).tolist() == [1]


def test_draws_follow_the_distribution_and_repeat_by_seed_and_position():
    import dataclasses

    from kernels.sampling.reference import sample

    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(4000, -1)
    base = settings(temperature=1.0, seed=7)
    many = dataclasses.replace(base, **{k: getattr(base, k).expand(4000) for k in vars(base)})
    many = dataclasses.replace(many, position=torch.arange(4000))
    drawn = sample(logits, many)
    assert drawn.tolist() == sample(logits, many).tolist()
    share = torch.bincount(drawn, minlength=4) / 4000
    assert (share - logits[0].softmax(0)).abs().max() < 0.025


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    from kernels.sampling.reference import keep

    x = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert keep(x, 0, 0.5, 0.0).tolist() == [True, False, False, False]
    assert keep(x, 0, 0.51, 0.0).tolist() == [True, True, False, False]
    assert keep(x, 3, 1.0, 0.0).tolist() == [True, True, True, False]
    assert keep(x, 0, 1.0, 0.2).tolist() == [True, True, True, False]


def test_a_mask_binds_greedy_rows_too_and_an_empty_one_is_an_error():
    from kernels.sampling.reference import sample

    logits = torch.tensor([[5.0, 1.0, 2.0]])
    assert sample(logits, settings(), bitmask=torch.tensor([[0b110]], dtype=torch.int32)).tolist() == [2]
    with pytest.raises(ValueError, match="no logit to choose from"):
        sample(logits, settings(), bitmask=torch.tensor([[0]], dtype=torch.int32))


def test_penalties_count_what_was_said():
    from kernels.sampling.reference import processed

    counts = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    x = processed(torch.tensor([[1.0, 1.0, -1.0]]), settings(repetition=2.0, presence=0.5, frequency=0.25), counts)
    assert x.tolist() == [[1.0, 0.5 - 0.25 - 0.5, -2.0 - 0.5 - 0.5]]

"""Attention over both stages of the cache against the plain form, over odd contexts, ragged batches and rows."""

from __future__ import annotations

import pytest
import torch

from kernels.testing import assert_close, assert_same_bits, poisoned

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def filled(batch, pages, tokens, kv_heads=4):
    from kernels.paged_attention.cache import allocate, demote, write

    pools = allocate(1 + batch * pages, 1 + batch * pages, kv_heads, 64, 256, DEVICE)
    table = 1 + torch.randperm(batch * pages, device=DEVICE).to(torch.int32).view(batch, pages)
    for b in range(batch):
        at = torch.arange(tokens, device=DEVICE)
        k, v = torch.randn(2, tokens, kv_heads, 256, device=DEVICE)
        write(pools, k, v, table[b].long()[at // 64], at % 64)
    every = table.flatten().long()
    demote(pools, every, every)
    return pools, table


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("anchors", "recent"), [(0, 1), (1, 2), (4, 32), (200, 200)])
@pytest.mark.parametrize("heads", [4, 24, 32])
def test_attention_over_both_stages(rows, anchors, recent, heads):
    from kernels.paged_attention.attend import attend
    from kernels.paged_attention.reference import attend as expected
    from kernels.paged_attention.stage import Staging

    pools, table = filled(4, 70, 4400)
    staging = Staging(64, anchors, recent)
    positions = torch.tensor([0, 31, 64 * 3 - 2, 4390], device=DEVICE)
    q = torch.randn(4, rows, heads, 256, device=DEVICE) * 2
    y = attend(q, pools, table, table, positions, staging)
    assert_close(y, expected(q, pools, table, table, positions, staging), relative=2e-3)
    for b in range(4):
        own = slice(b, b + 1)
        alone = attend(q[own, rows - 1 :], pools, table[own], table[own], positions[own] + rows - 1, staging)
        assert_same_bits(alone, y[own, rows - 1 :].contiguous(), what=f"the last row of sequence {b} alone")


def test_a_page_of_zeros_and_large_scores_stay_finite():
    from kernels.paged_attention.attend import attend
    from kernels.paged_attention.reference import attend as expected
    from kernels.paged_attention.stage import Staging

    pools, table = filled(1, 10, 640)
    pools.three_bit_values.scale[table[0, 3]] = 0
    q = torch.randn(1, 1, 24, 256, device=DEVICE) * 60
    where, staging = torch.tensor([639], device=DEVICE), Staging(64, 1, 1)
    y = attend(q, pools, table, table, where, staging)
    assert_close(y, expected(q, pools, table, table, where, staging), relative=6e-3)


def test_every_run_that_is_read_is_written():
    from kernels.paged_attention.launch import attend_pages
    from kernels.paged_attention.runs import Runs

    pools, table = filled(2, 20, 1280)
    runs = Runs(2, 2, 2)
    q, where = torch.randn(2, 24, 256, device=DEVICE), torch.tensor([1279, 130], device=DEVICE)
    acc = poisoned(2 * 4 * runs.count(20), 16, 256, device=DEVICE)
    most_total = poisoned(2 * 4 * runs.count(20), 32, device=DEVICE)
    attend_pages(q, pools.keys, pools.values, table, where, acc, most_total, heads=24, rows=1, runs=runs, scale=1 / 16)
    acc, most_total = acc.view(2, 4, -1, 16, 256)[..., :6, :], most_total.view(2, 4, -1, 2, 16)[..., :6]
    for b, used in ((0, 6), (1, 2)):
        for found in (acc[b], most_total[b]):
            assert torch.isfinite(found[:, :used]).all()
            assert torch.isnan(found[:, used:]).all()


def test_demotion_on_the_device_equals_the_plain_one():
    from kernels.paged_attention.cache import allocate, demote, read_three_bit
    from kernels.paged_attention.launch import demote_on_device

    mine, theirs = (allocate(5, 4, 3, 64, 256, DEVICE) for _ in range(2))
    for pool in (mine.keys, mine.values):
        pool.copy_((torch.randn(pool.shape, device=DEVICE) * 5).to(pool.dtype))
    mine.keys.view(torch.uint8)[2, 1, 5] = 0
    for encoded in (mine.three_bit_keys, mine.three_bit_values):
        encoded.codes.fill_(255)
        encoded.scale.fill_(float("nan"))
    theirs.keys.view(torch.uint8).copy_(mine.keys.view(torch.uint8))
    theirs.values.view(torch.uint8).copy_(mine.values.view(torch.uint8))
    source, target = torch.tensor([4, 2], device=DEVICE), torch.tensor([1, 3], device=DEVICE)
    demote_on_device(mine, source, target)
    demote(theirs, source, target)
    for page in (1, 3):
        for a, b in zip(read_three_bit(mine, page), read_three_bit(theirs, page), strict=True):
            assert_close(a, b, relative=5e-3)
    assert torch.isnan(mine.three_bit_keys.scale[[0, 2]]).all()

"""How wide_gemm.cu divides a product over blocks, and where it puts x: its formulas, without a GPU."""

from __future__ import annotations

import pytest

from kernels.benchmarks.shapes import PRODUCTS
from kernels.native.gemm import MOST_PARTS, WIDE, blocks_for, usual_parts, usual_split

SHAPES = sorted({(rows, columns) for rows, columns, _ in PRODUCTS.values()} | {(16, 256), (528, 2048), (4176, 5120)})


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_each_stage_of_k_is_in_one_part_of_its_rows(rows, columns):
    tiles, stages_k = -(-rows // 256), columns // 256
    total = tiles * stages_k
    for parts in range(1, MOST_PARTS + 1):
        blocks = blocks_for(rows, columns, parts)
        owned: dict[tuple[int, int], int] = {}
        for block in range(blocks):
            ends = [tiles * b // blocks * stages_k if parts == 1 else total * b // blocks for b in (block, block + 1)]
            for unit in range(*ends):
                tile = unit // stages_k
                first = block if parts == 1 else ((tile * stages_k + 1) * blocks - 1) // total
                assert (tile, unit % stages_k) not in owned
                owned[tile, unit % stages_k] = block - first
        assert len(owned) == total
        for tile in range(tiles):
            numbers = [owned[tile, stage] for stage in range(stages_k)]
            assert numbers == sorted(numbers)
            assert numbers[0] == 0  # the first part is never missing; the last writer fills up the others
            assert set(numbers) == set(range(numbers[-1] + 1))
            assert numbers[-1] < parts


def test_usual_shares_are_even_and_products_of_k_that_is_not_whole_stages_stay_narrow():
    assert {usual_parts(rows, columns) for rows, columns, _ in PRODUCTS.values()} <= set(range(1, MOST_PARTS + 1))
    assert usual_split("nvfp4", 5120, 5120, 9)[1] == WIDE
    assert usual_split("nvfp4", 5120, 5120, 8)[1] != WIDE
    assert usual_split("nvfp4", 5120, 5120, 1, invariant=True) == usual_split("nvfp4", 5120, 5120, 128, invariant=True)
    assert usual_split("nvfp4", 5120, 1088, 128)[1] != WIDE


def test_x_lies_in_the_order_of_the_weights():
    """Lane 4 g + t has columns 16 t to 16 t + 15 of 64, four a step: two at 2 t of wgmma's K, two at 8 + 2 t."""
    place = {pair: pair // 2 % 4 * 8 + pair % 2 * 4 + pair // 8 for pair in range(32)}
    assert sorted(place.values()) == list(range(32))
    for t in range(4):
        for step in range(4):
            for side in range(2):
                column = 16 * t + 4 * step + 2 * side
                assert place[column // 2] * 2 == step * 16 + side * 8 + 2 * t

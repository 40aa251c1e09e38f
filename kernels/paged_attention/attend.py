"""Attention over the staged cache on a GPU: rotation, one launch for both stages, joining of runs, rotation back."""

from __future__ import annotations

import torch

from kernels.paged_attention.cache import PagePools
from kernels.paged_attention.launch import attend_pages, partial_sums
from kernels.paged_attention.runs import Runs, runs_of
from kernels.paged_attention.stage import Staging
from kernels.turboquant.rotate import constants, rotate


def attend(
    q: torch.Tensor,
    pools: PagePools,
    fp8_table: torch.Tensor,
    three_bit_table: torch.Tensor,
    positions: torch.Tensor,
    staging: Staging,
    *,
    scale: float | None = None,
    wide: bool = False,
    runs: Runs | None = None,
) -> torch.Tensor:
    """reference.attend. `wide` multiplies in float32 (for tests); else queries are float16 for FP8 pages, which hold
    e4m3 exactly, and have 16 bits for three-bit ones.

    Runs stand at absolute positions for every batch: the same row gives the same bits in any company.
    """
    from kernels.paged_attention.device import merge_kernel

    batch, rows, heads, size = q.shape
    kv_heads, page = pools.keys.shape[1], pools.page_tokens
    if page != staging.page_tokens:
        raise ValueError(f"the pools have pages of {page} tokens, the staging rule says {staging.page_tokens}")
    runs = runs or runs_of(page, staging)
    splits = runs.count(fp8_table.shape[1])
    rotated = rotate(q.to(torch.float32)).view(batch * rows, heads, size)
    acc, most_total = partial_sums(heads, pools.keys, batch * rows, splits)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    sign, small = constants(size, q.device)
    attend_pages(
        rotated,
        pools.keys,
        pools.values,
        fp8_table,
        positions,
        acc,
        most_total,
        heads=heads,
        rows=rows,
        runs=runs,
        scale=size**-0.5 if scale is None else scale,
        three_bit=(pools.three_bit_keys, pools.three_bit_values, three_bit_table, staging),
        wide=wide,
    )
    merge_kernel[(batch * rows, heads)](
        acc,
        most_total,
        positions,
        sign,
        small,
        out,
        rows,
        splits,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        SIZE=size,
        ROOT=small.shape[0],
        PAGE=page,
        num_warps=8,
        **runs.constants,
    )
    return out

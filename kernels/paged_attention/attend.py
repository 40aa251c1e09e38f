"""Attention over the staged cache through Triton: one kernel for both stages, then one that joins the splits."""

from __future__ import annotations

import torch

from kernels.paged_attention.cache import PagePools
from kernels.paged_attention.stage import Staging
from kernels.turboquant.reference import CENTROID_BITS
from kernels.turboquant.rotate import rotate

SPLIT_TOKENS = 256


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
    split_tokens: int = SPLIT_TOKENS,
) -> torch.Tensor:
    """reference.attend. `wide` multiplies in float32 (for tests); else products are in float16, which holds e4m3 and
    the centroids exactly.

    Splits are `split_tokens` long at absolute positions for every batch: the same row gives the same bits in any
    company.
    """
    import triton.language as tl

    from kernels.paged_attention.device import attend_kernel, merge_kernel

    batch, rows, heads, size = q.shape
    kv_heads, page = pools.keys.shape[1], pools.page_tokens
    group = heads // kv_heads
    if group > 16:
        raise ValueError(f"a KV head may serve at most 16 query heads, not {group}")
    if page != staging.page_tokens:
        raise ValueError(f"the pools have pages of {page} tokens, the staging rule says {staging.page_tokens}")
    pages = fp8_table.shape[1]
    split = max(split_tokens // page, 1)
    splits = -(-pages // split)
    rotated = rotate(q)
    acc = torch.empty(batch * rows * kv_heads * splits, 16, size, device=q.device)
    most_total = torch.empty(batch * rows * kv_heads * splits, 32, device=q.device)
    out = torch.empty(batch * rows, heads, size, device=q.device)
    k, v = pools.three_bit_keys, pools.three_bit_values
    attend_kernel[(batch * rows, kv_heads, splits)](
        rotated,
        pools.keys,
        pools.values,
        k.low,
        k.signs,
        k.scale,
        v.low,
        v.signs,
        v.scale,
        fp8_table,
        three_bit_table,
        positions,
        acc,
        most_total,
        rows,
        pages,
        staging.anchors,
        staging.recent,
        splits,
        size**-0.5 if scale is None else scale,
        *CENTROID_BITS,
        KV_HEADS=kv_heads,
        GROUP=group,
        SIZE=size,
        PAGE=page,
        SPLIT=split,
        DOT=tl.float32 if wide else tl.float16,
        FAST=q.is_cuda and not wide,
        STAGES=3,
        OVERLAP=False,
        num_warps=4,
    )
    merge_kernel[(batch * rows, heads)](
        acc,
        most_total,
        positions,
        out,
        rows,
        splits,
        KV_HEADS=kv_heads,
        GROUP=group,
        SIZE=size,
        RUN=split * page,
        num_warps=2,
    )
    return rotate(out, inverse=True, dtype=q.dtype).view(batch, rows, heads, size)

"""A decode step of an attention layer between its projections: three launches."""

from __future__ import annotations

import torch

from kernels.paged_attention.cache import PagePools
from kernels.paged_attention.launch import attend_pages, partial_sums
from kernels.paged_attention.runs import Runs, runs_of
from kernels.paged_attention.stage import Staging
from kernels.turboquant.rotate import constants


def decode_step(
    mixed: torch.Tensor,
    pools: PagePools,
    fp8_table: torch.Tensor,
    three_bit_table: torch.Tensor,
    positions: torch.Tensor,
    staging: Staging,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    heads: int,
    wide: bool = False,
    runs: Runs | None = None,
    overlap: bool = False,
) -> torch.Tensor:
    """Norms, RoPE, the write to the FP8 page, attention and the gate for [parts, B, T, heads (q | gate) | k | v].

    The parts of a product that was split over K are added in order. Row t of sequence b stands at positions[b] + t;
    all rows are written before any is attended to. Returns bfloat16 [B, T, heads D].
    """
    from kernels.paged_attention.device import finish_kernel, prepare_kernel

    parts, batch, rows, _ = mixed.shape
    kv_heads, page, size = pools.keys.shape[1], pools.page_tokens, pools.keys.shape[3]
    if page != staging.page_tokens:
        raise ValueError(f"the pools have pages of {page} tokens, the staging rule says {staging.page_tokens}")
    total, pages = batch * rows, fp8_table.shape[1]
    runs = runs or runs_of(page, staging)
    splits = runs.count(pages)
    sign, small = constants(size, mixed.device)
    q = torch.empty(total, heads, size, device=mixed.device)
    acc, most_total = partial_sums(heads, pools.keys, total, splits)
    out = torch.empty(batch, rows, heads * size, dtype=torch.bfloat16, device=mixed.device)
    shape = {"KV_HEADS": kv_heads, "SIZE": size}
    start = {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})
    prepare_kernel[(total, heads + 2 * kv_heads)](
        mixed,
        q_norm,
        k_norm,
        cos,
        sin,
        sign,
        small,
        positions,
        fp8_table,
        q,
        pools.keys,
        pools.values,
        rows,
        pages,
        total,
        PARTS=parts,
        HEADS=heads,
        ROOT=small.shape[0],
        HALF=cos.shape[1],
        PAGE=page,
        num_warps=2,
        **shape,
        **start,
    )
    attend_pages(
        q,
        pools.keys,
        pools.values,
        fp8_table,
        positions,
        acc,
        most_total,
        heads=heads,
        rows=rows,
        runs=runs,
        scale=size**-0.5,
        three_bit=(pools.three_bit_keys, pools.three_bit_values, three_bit_table, staging),
        wide=wide,
        overlap=overlap,
    )
    finish_kernel[(total, heads)](
        acc,
        most_total,
        positions,
        mixed,
        sign,
        small,
        out,
        rows,
        total,
        splits,
        PARTS=parts,
        HEADS=heads,
        ROOT=small.shape[0],
        PAGE=page,
        num_warps=8,
        **runs.constants,
        **shape,
        **start,
    )
    return out

"""Spans of keys and values through Triton."""

from __future__ import annotations

import torch

from kernels.paged_attention.cache import PageMemory, PagePools
from kernels.turboquant.reference import CENTROIDS


def gather(
    memory: PageMemory, table: torch.Tensor, tokens: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.gather, for keys and values of all pages at once."""
    from kernels.page_spans.device import gather_kernel

    _, kv_heads, page, size = memory.keys.shape
    keys, values = torch.empty(2, tokens, kv_heads, size, dtype=dtype, device=table.device)
    stale: list[torch.Tensor] = []
    if isinstance(memory, PagePools):
        if (page, size) != (64, 256):
            raise ValueError(f"pages in three bits are read of 64 tokens and 256 dimensions, not of {page} and {size}")
        for encoded in (memory.three_bit_keys, memory.three_bit_values):
            stale += [encoded.codes.view(torch.int32), encoded.scale]
    gather_kernel[(len(table), kv_heads, 2)](
        table,
        memory.keys,
        memory.values,
        *(stale or [table] * 4),
        keys,
        values,
        *CENTROIDS,
        KV_HEADS=kv_heads,
        PAGE=page,
        SIZE=size,
        STAGED=bool(stale),
        num_warps=4,
    )
    return keys, values

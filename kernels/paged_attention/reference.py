"""Attention over the staged cache in plain PyTorch, row by row."""

from __future__ import annotations

import torch

from kernels.paged_attention.cache import PagePools, read_three_bit
from kernels.paged_attention.stage import Staging
from kernels.turboquant.reference import rotation


def attend(
    q: torch.Tensor,
    pools: PagePools,
    fp8_table: torch.Tensor,
    three_bit_table: torch.Tensor,
    positions: torch.Tensor,
    staging: Staging,
    *,
    scale: float | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Causal attention of q [B, T, heads, D] (after norm and RoPE, not rotated) over pages; returns [B, T, heads, D].

    Row t of sequence b stands at positions[b] + t and sees every token from `first` up to itself, page j in the stage
    that `staging.is_fp8` gives for its own position. fp8_table and three_bit_table [B, pages] name the page in each
    pool.
    """
    batch, tokens, heads, size = q.shape
    kv_heads, page_tokens = pools.keys.shape[1], pools.page_tokens
    scale = size**-0.5 if scale is None else scale
    turn = rotation(size, q.device)
    out = torch.empty_like(q)
    for b in range(batch):
        for t in range(tokens):
            position = int(positions[b]) + t
            pages = range(position // page_tokens + 1)
            stale = [page for page in pages if not staging.is_fp8(position, page)]
            others = [page for page in pages if staging.is_fp8(position, page)]
            read = torch.empty(2, len(pages), kv_heads, page_tokens, size, device=q.device)
            if stale:
                read[0, stale], read[1, stale] = read_three_bit(pools, three_bit_table[b, stale].long())
            at = fp8_table[b, others].long()
            for each, pool in zip(read, (pools.keys, pools.values), strict=True):
                each[others] = pool.view(torch.uint8)[at].view(pool.dtype).to(torch.float32)
            k, v = read.transpose(1, 2).flatten(2, 3)[:, :, first : position + 1]  # [kv_heads, tokens, D]
            rotated = (q[b, t].to(torch.float32) @ turn.T).view(kv_heads, heads // kv_heads, size)
            weights = torch.softmax(rotated @ k.transpose(1, 2) * scale, dim=-1)
            out[b, t] = ((weights @ v).view(heads, size) @ turn).to(q.dtype)
    return out

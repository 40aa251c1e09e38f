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
) -> torch.Tensor:
    """Causal attention of q [B, T, heads, D] (after norm and RoPE, not rotated) over pages; returns [B, T, heads, D].

    Row t of sequence b stands at positions[b] + t and sees every token up to itself, page j in the stage that
    `staging.is_fp8` gives for its own position. fp8_table and three_bit_table [B, pages] name the page in each pool.
    """
    batch, tokens, heads, size = q.shape
    kv_heads, page_tokens = pools.keys.shape[1], pools.page_tokens
    scale = size**-0.5 if scale is None else scale
    turn = rotation(size, q.device)
    out = torch.empty_like(q)
    for b in range(batch):
        for t in range(tokens):
            position = int(positions[b]) + t
            keys, values = [], []
            for page in range(position // page_tokens + 1):
                if staging.is_fp8(position, page):
                    at = int(fp8_table[b, page])
                    keys.append(pools.keys[at].to(torch.float32))
                    values.append(pools.values[at].to(torch.float32))
                else:
                    page_keys, page_values = read_three_bit(pools, int(three_bit_table[b, page]))
                    keys.append(page_keys)
                    values.append(page_values)
            k = torch.cat(keys, dim=1)[:, : position + 1]  # [kv_heads, tokens, D]
            v = torch.cat(values, dim=1)[:, : position + 1]
            rotated = (q[b, t].to(torch.float32) @ turn.T).view(kv_heads, heads // kv_heads, size)
            weights = torch.softmax(rotated @ k.transpose(1, 2) * scale, dim=-1)
            out[b, t] = ((weights @ v).view(heads, size) @ turn).to(q.dtype)
    return out

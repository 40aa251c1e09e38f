"""Keys and values of prompts, brought together from their pages for a product; in plain PyTorch.

A table names the pages in order, int32 [pages, 4]: a page of the first pool or -1; else one in three bits; the place
that its first token gets; and how many of its tokens count.
"""

from __future__ import annotations

import torch

from kernels.paged_attention.cache import PageMemory, PagePools, read_three_bit


def gather(
    memory: PageMemory, table: torch.Tensor, tokens: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated keys and values [tokens, kv heads, D]; every place is named once."""
    page, size = memory.keys.shape[2:]
    first, stale, place, count = table.long().unbind(1)
    is_stale, bytes_ = first < 0, size * memory.keys.element_size()
    offsets = torch.arange(page, device=table.device)
    at = (place[:, None] + offsets)[offsets < count[:, None]]
    found = []
    for which, pool in enumerate((memory.keys, memory.values)):
        whole = pool.view(torch.uint8)[first.clamp_min(0)].view(len(table), -1, page, bytes_).view(pool.dtype)
        pages = whole.to(torch.float32)
        if isinstance(memory, PagePools) and bool(is_stale.any()):
            pages[is_stale] = read_three_bit(memory, stale[is_stale])[which]
        span = torch.empty(tokens, pages.shape[1], size, dtype=dtype, device=table.device)
        span[at] = pages.transpose(1, 2)[offsets < count[:, None]].to(dtype)
        found.append(span)
    return found[0], found[1]

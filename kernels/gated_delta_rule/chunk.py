"""The chunked form through Triton: prefill of sequences packed one after another."""

from __future__ import annotations

import torch

from kernels.gated_delta_rule.reference import CHUNK


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    starts: torch.Tensor,
    *,
    precision: str = "tf32x3",
) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.chunked_ragged for contiguous inputs; products in three tf32 parts, which keeps float32's accuracy.

    Start every call at a multiple of 64 in its sequence: then states at such positions do not depend on how a prompt
    was cut.
    """
    from kernels.gated_delta_rule.device import chunk_kernel

    batch, heads, size_v = state.shape[0], v.shape[1], v.shape[2]
    o, last = torch.empty_like(v), torch.empty_like(state, dtype=torch.float32)
    block = min(size_v, 32)
    if batch:
        chunk_kernel[(batch, heads, size_v // block)](
            q,
            k,
            v,
            g,
            beta,
            state,
            starts,
            o,
            last,
            HK=q.shape[1],
            H=heads,
            K=q.shape[2],
            V=size_v,
            BV=block,
            C=CHUNK,
            PRECISION=precision,
            num_warps=4,
            num_stages=1,
        )
    return o, last

"""The recurrence through Triton: decoding on any GPU, one or several rows a sequence."""

from __future__ import annotations

import torch


def recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    state_in: torch.Tensor,
    state_out: torch.Tensor,
) -> torch.Tensor:
    """reference.recurrent_slots for contiguous inputs. A slot that is written must not be another sequence's
    state_in."""
    from kernels.gated_delta_rule.device import recurrent_kernel

    batch, tokens, heads, size_v = v.shape
    o = torch.empty_like(v)
    if batch and tokens:
        block = min(size_v, 32)
        recurrent_kernel[(batch, heads, size_v // block)](
            q,
            k,
            v,
            g,
            beta,
            state,
            state_in,
            state_out,
            o,
            tokens,
            HK=q.shape[2],
            H=heads,
            K=q.shape[3],
            V=size_v,
            BV=block,
            num_warps=4,
        )
    return o

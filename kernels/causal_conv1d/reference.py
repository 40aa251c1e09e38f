"""Causal depthwise convolution of ragged sequences in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def causal_conv1d(
    x: torch.Tensor, weight: torch.Tensor, history: torch.Tensor, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """silu(Σ_i weight[i] x[t - taps + 1 + i]) for sequences packed one after another.

    x [T, C]; weight [taps, C], oldest first; history [B, taps - 1, C], the inputs before each sequence; starts [B +
    1], where
    each begins. Returns y [T, C] and the new history, the last inputs before SiLU, also where a sequence is shorter
    than it.
    """
    taps = weight.shape[0]
    dtype = torch.promote_types(x.dtype, torch.float32)
    y, kept = torch.empty_like(x), torch.empty_like(history)
    for b in range(history.shape[0]):
        begin, end = int(starts[b]), int(starts[b + 1])
        inputs = torch.cat([history[b].to(x.dtype), x[begin:end]])
        wide = inputs.to(dtype)
        total = torch.zeros(end - begin, x.shape[1], dtype=dtype, device=x.device)
        for i in range(taps):
            total += weight[i].to(dtype) * wide[i : i + end - begin]
        y[begin:end] = F.silu(total).to(x.dtype)
        kept[b] = inputs[inputs.shape[0] - taps + 1 :].to(history.dtype)
    return y, kept

"""Causal depthwise convolution of ragged sequences in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.ragged import Ragged


def causal_conv1d(x: torch.Tensor, weight: torch.Tensor, ring: torch.Tensor, rows: Ragged) -> torch.Tensor:
    """silu(Σ_i weight[i] x[t - taps + 1 + i]) for sequences packed one after another.

    x [T, C], rounded to the ring's type first, as later steps find it; weight [taps, C], oldest first; ring [slots, R,
    C], the input before SiLU of position p at p % R, read and written in place: the last inputs before each stop, also
    where there are fewer. Returns y [T, C].
    """
    taps, places = weight.shape[0], ring.shape[1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    y = torch.empty_like(x, dtype=dtype)
    back = torch.arange(1 - taps, 0, device=x.device)
    for part in rows.parts():
        inputs = torch.cat([ring[part.slot, (part.position + back) % places], x[part.rows].to(ring.dtype)])
        count = len(inputs) - taps + 1
        wide = inputs.to(dtype)
        total = torch.zeros(count, x.shape[1], dtype=dtype, device=x.device)
        for i in range(taps):
            total += weight[i].to(dtype) * wide[i : i + count]
        y[part.rows] = F.silu(total)
        for end, slot in part.stops:
            ring[slot, (part.position + end + back) % places] = inputs[end : end + taps - 1]
    return y

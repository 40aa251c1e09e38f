"""Rotary embedding over the first dimensions of a head, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def rotary_table(
    positions: int,
    dims: int,
    theta: float,
    device: torch.device | str = "cpu",
    factors: Sequence[float] = (1.0,),
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, f32 [positions, dims / 2]. Angles are made in float64: at 262,144 float32 would be off by 0.01.
    `factors`: what divides the frequency of each pair, or of all."""
    frequency = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    frequency = frequency / torch.tensor(factors, dtype=torch.float64)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float().to(device), angle.sin().float().to(device)


def rotary(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (j, j + dims / 2) of x [T, H, D] by its position's angles; dimensions from `dims` on pass
    unchanged."""
    half = cos.shape[1]
    c, s = cos[positions][:, None, :], sin[positions][:, None, :]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    a, b = wide[..., :half], wide[..., half : 2 * half]
    return torch.cat([a * c - b * s, b * c + a * s, wide[..., 2 * half :]], dim=-1).to(x.dtype)

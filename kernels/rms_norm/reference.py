"""RMS norms in plain PyTorch. README.md says which layer uses which."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero-centred norm over the last axis, y = x / rms(x) (1 + w), in float32 and rounded once, after x += residual.

    Returns (y, x): the sum is what the next residual addition starts from. It is rounded to x's dtype before the norm.
    """
    if residual is not None:
        x = x + residual
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (1 + weight.to(wide.dtype))
    return y.to(x.dtype), x


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Norm over the last axis, rounded to x's dtype, times w (not zero-centred), times silu(gate) in float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return (weight.to(wide.dtype) * normed.to(wide.dtype) * F.silu(gate.to(wide.dtype))).to(x.dtype)

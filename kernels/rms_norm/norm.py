"""RMS norms through Triton; one program a row, so that a row does not depend on the others."""

from __future__ import annotations

import torch


def _block(width: int) -> int:
    return 1 << max(width - 1, 1).bit_length()


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.rms_norm for contiguous x [..., width]; rows rounded to `dtype`, or x's. The sum has the residual's
    type."""
    from kernels.rms_norm.device import rms_norm_kernel

    y = torch.empty_like(x, dtype=dtype or x.dtype)
    total = torch.empty_like(residual) if residual is not None else x
    width = x.shape[-1]
    rows = x.numel() // max(width, 1)
    if rows:
        rms_norm_kernel[(rows,)](
            x,
            x if residual is None else residual,
            weight,
            y,
            total,
            width,
            eps,
            HAS_RESIDUAL=residual is not None,
            BLOCK=_block(width),
        )
    return y, total


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """reference.gated_rms_norm for contiguous x [..., width], rounded to `dtype`, or x's. `gate` may be [rows, heads,
    width] with rows that lie apart."""
    from kernels.rms_norm.device import gated_rms_norm_kernel

    y = torch.empty_like(x, dtype=dtype or x.dtype)
    width = x.shape[-1]
    heads, stride = (x.shape[1], gate.stride(0)) if x.ndim == 3 else (1, width)
    rows = x.numel() // max(width, 1)
    if rows:
        gated_rms_norm_kernel[(rows,)](
            x, gate, weight, y, heads, stride, width, eps, BLOCK=_block(width), num_warps=1 if width <= 256 else 4
        )
    return y

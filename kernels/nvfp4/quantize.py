"""Activation quantisation through Triton."""

from __future__ import annotations

import torch


def quantize_activation(x: torch.Tensor, input_multiplier: float) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.quantize_activation, bit for bit, for contiguous x [M, K]."""
    from kernels.nvfp4.device import quantize_kernel

    rows, width = x.shape
    codes = torch.empty(rows, width // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, width // 16, dtype=torch.float8_e4m3fn, device=x.device)
    if rows:
        quantize_kernel[(rows, -(-width // 512))](x, codes, scales, width, input_multiplier, GROUPS=32, num_warps=1)
    return codes, scales

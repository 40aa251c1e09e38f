"""Causal convolution through Triton."""

from __future__ import annotations

import torch


def causal_conv1d(
    x: torch.Tensor, weight: torch.Tensor, history: torch.Tensor, starts: torch.Tensor, *, longest: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.causal_conv1d. `longest` is the length of the longest sequence; without it the device is asked, which
    waits."""
    from kernels.causal_conv1d.device import conv_kernel

    batch, channels = history.shape[0], x.shape[1]
    if longest is None:
        longest = int((starts[1:] - starts[:-1]).max()) if batch else 0
    y, kept = torch.empty_like(x), torch.empty_like(history)
    block_t, block_c = 16, 128
    grid = (batch, max(-(-longest // block_t), 1), -(-channels // block_c))
    if batch:
        conv_kernel[grid](x, weight, history, starts, y, kept, channels, TAPS=weight.shape[0], BT=block_t, BC=block_c)
    return y, kept

"""Causal convolution through Triton."""

from __future__ import annotations

import torch


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    history: torch.Tensor,
    starts: torch.Tensor,
    *,
    longest: int | None = None,
    heads: tuple[int, int] | None = None,
    ring: torch.dtype | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.causal_conv1d of the first channels of each row of x, as many as `weight` has, rounded to `dtype`.

    `longest` is the length of the longest sequence; without it the device is asked, which waits. `heads`: the first
    channels are that many heads of queries and as many of keys, of that size, which are l2-normalised too, queries
    times size^(-1/2). `ring`: inputs are rounded to this type first, as later steps find them.
    """
    from kernels.causal_conv1d.device import conv_kernel

    batch, channels = history.shape[0], weight.shape[1]
    if longest is None:
        longest = int((starts[1:] - starts[:-1]).max()) if batch else 0
    y = torch.empty(x.shape[0], channels, dtype=dtype, device=x.device)
    kept = torch.empty_like(history)
    count, size = heads or (0, 128)
    block_t = 16
    grid = (batch, max(-(-longest // block_t), 1), -(-channels // size))
    if batch:
        conv_kernel[grid](
            x,
            x.stride(0),
            weight,
            history,
            starts,
            y,
            kept,
            channels,
            count,
            2 * count,
            size**-0.5,
            TAPS=weight.shape[0],
            BT=block_t,
            BC=size,
            ROUND=ring == torch.bfloat16 and x.dtype != torch.bfloat16,
            NORM=heads is not None,
        )
    return y, kept

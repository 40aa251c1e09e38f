"""Causal convolution through Triton."""

from __future__ import annotations

import torch

from kernels.ragged import Ragged


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    ring: torch.Tensor,
    rows: Ragged,
    *,
    heads: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """reference.causal_conv1d of the first channels of each row of x, as many as `weight` has, rounded to `dtype`.

    `heads`: the first channels are that many heads of queries and as many of keys, of that size, which are
    l2-normalised too, queries times size^(-1/2).
    """
    from kernels.causal_conv1d.device import conv_kernel

    channels = weight.shape[1]
    y = torch.empty(x.shape[0], channels, dtype=dtype, device=x.device)
    count, size = heads or (0, 128)
    block_t = 16
    grid = (len(rows.slots), max(-(-rows.longest // block_t), 1), -(-channels // size))
    if len(rows.slots):
        conv_kernel[grid](
            x,
            x.stride(0),
            weight,
            ring,
            rows.starts,
            rows.slots,
            rows.positions,
            rows.stops,
            rows.first_stops,
            y,
            channels,
            count,
            2 * count,
            size**-0.5,
            RING=ring.shape[1],
            TAPS=weight.shape[0],
            BT=block_t,
            BC=size,
            NORM=heads is not None,
        )
    return y

"""TurboQuant's encoder through Triton."""

from __future__ import annotations

from typing import Literal

import torch

from kernels.turboquant.reference import CENTROIDS, THRESHOLDS, Encoded


def encode(rotated: torch.Tensor, scale: Literal["unbiased", "least_squares"]) -> Encoded:
    """reference.encode for contiguous vectors whose size is a power of two."""
    from kernels.turboquant.device import encode_kernel

    size, lead = rotated.shape[-1], rotated.shape[:-1]
    rows = rotated.numel() // size
    low = torch.empty(*lead, size // 4, dtype=torch.uint8, device=rotated.device)
    signs = torch.empty(*lead, size // 8, dtype=torch.uint8, device=rotated.device)
    stored = torch.empty(lead, dtype=torch.float16, device=rotated.device)
    if rows:
        encode_kernel[(rows,)](
            rotated,
            low,
            signs,
            stored,
            *THRESHOLDS,
            *CENTROIDS,
            UNBIASED=scale == "unbiased",
            ROOT=size**0.5,
            SIZE=size,
            num_warps=1,
        )
    return Encoded(low, signs, stored)

"""The rotation through Triton: a Hadamard product of size n² is two products with the one of size n."""

from __future__ import annotations

import functools
from math import isqrt

import torch

from kernels.turboquant.reference import hadamard, signs


@functools.cache
def constants(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The signs [size] and the small Hadamard matrix [√size, √size], float32."""
    root = isqrt(size)
    if root * root != size or (root < 16 and device.type != "cpu"):
        raise ValueError(
            f"the device rotates vectors of 256, 1024, …; {size} is not the square of a power of two from 16 on"
        )
    return signs(size).to(device), hadamard(root).to(device)


def rotate(x: torch.Tensor, *, inverse: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """reference.rotate, or reference.unrotate with `inverse`, of vectors [..., D] in float32, rounded to `dtype`."""
    from kernels.turboquant.device import rotate_kernel

    size = x.shape[-1]
    sign, small = constants(size, x.device)
    x = x.contiguous()
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel():
        rotate_kernel[(x.numel() // size,)](
            x, sign, small, y, INVERSE=inverse, SIZE=size, ROOT=small.shape[0], num_warps=2
        )
    return y

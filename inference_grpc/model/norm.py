"""Root mean square norms in fewer operations than torch's own, of the same bits."""

from __future__ import annotations

import torch


class RmsNorm:
    """x / sqrt(mean(x²) + epsilon) * weight, over the last of `width`. A decode step is short enough for each operation
    to show, so there are six here, and their constants are tensors already."""

    def __init__(self, width: int, epsilon: float) -> None:
        self._width = torch.tensor(float(width))
        self._epsilon = torch.tensor(epsilon)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[..., width] float32, weight [width]; a new tensor."""
        squares = x.square().sum(-1, keepdim=True)
        return (x * torch.addcdiv(self._epsilon, squares, self._width).rsqrt_()).mul_(weight)

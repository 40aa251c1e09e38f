"""FP8 (e4m3) in plain PyTorch: quantise by matrix, by row or by 128 x 128 blocks, and multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

MAX = 448.0
BLOCK = 128


@dataclass(frozen=True)
class Fp8Matrix:
    """w = values x multiplier. The multiplier is [N] (by row; one value repeated if by matrix) or [N / 128, K /
    128]."""

    values: torch.Tensor  # e4m3 [N, K]
    multiplier: torch.Tensor  # f32

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.multiplier.nbytes


def _multiplier(amax: torch.Tensor) -> torch.Tensor:
    return torch.where(amax > 0, amax / MAX, torch.ones_like(amax)).to(torch.float32)


def _round(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-MAX, MAX).to(torch.float8_e4m3fn)


def quantize(weight: torch.Tensor, *, by: Literal["matrix", "row", "block"] = "row") -> Fp8Matrix:
    """Quantise [N, K]; by block both sides must be multiples of 128, as in the official FP8 checkpoints."""
    w = weight.to(torch.float32)
    rows, columns = w.shape
    if by == "block":
        if rows % BLOCK or columns % BLOCK:
            raise ValueError(f"[{rows}, {columns}] does not divide into blocks of {BLOCK}; pad the matrix")
        tiles = w.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        multiplier = _multiplier(tiles.abs().amax((1, 3)))
        return Fp8Matrix(_round(tiles / multiplier[:, None, :, None]).view(rows, columns), multiplier)
    amax = w.abs().amax(1) if by == "row" else w.abs().amax().expand(rows)
    multiplier = _multiplier(amax).contiguous()
    return Fp8Matrix(_round(w / multiplier[:, None]), multiplier)


def dequantize(matrix: Fp8Matrix) -> torch.Tensor:
    values = matrix.values.to(torch.float32)
    if matrix.multiplier.ndim == 1:
        return values * matrix.multiplier[:, None]
    return values * matrix.multiplier.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def quantize_activation(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [M, K] and a multiplier a row [M]."""
    multiplier = _multiplier(x.to(torch.float32).abs().amax(-1))
    return _round(x.to(torch.float32) / multiplier[:, None]), multiplier


def linear(x: torch.Tensor, matrix: Fp8Matrix) -> torch.Tensor:
    """W8A8: activations are quantised by row; sums in float32."""
    values, multiplier = quantize_activation(x)
    return ((values.to(torch.float32) @ dequantize(matrix).T) * multiplier[:, None]).to(x.dtype)

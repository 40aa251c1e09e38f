"""A weight matrix as a checkpoint stores it: plain, FP8 or NVFP4. Reading keeps these bits; only `to_float` loses them.

Whatever a container calls its scales, in here every scale **multiplies**: value = code x scale (x multiplier). Rows are
output features. A matrix [N, K] is applied as x W^T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from kernels.nvfp4.format import GROUP, Nvfp4Matrix
from kernels.nvfp4.reference import dequantize

FP8_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Plain:
    """float32, float16 or bfloat16 [N, K]."""

    values: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @property
    def format(self) -> str:
        return {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[self.values.dtype]

    def to_float(self) -> torch.Tensor:
        return self.values.float()

    def rows(self, order: torch.Tensor) -> Plain:
        return Plain(self.values[order])

    def columns(self, order: torch.Tensor) -> Plain:
        return Plain(self.values[:, order])


@dataclass(frozen=True, slots=True)
class Fp8:
    """e4m3 with a multiplier for each row (a per-tensor scale is the same one for all)."""

    values: torch.Tensor  # float8_e4m3fn [N, K]
    scale: torch.Tensor  # float32 [N]
    input_scale: float | None = None  # static scale of the activations; None: one for each row of x, from its maximum

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @property
    def format(self) -> str:
        return "fp8"

    def to_float(self) -> torch.Tensor:
        return self.values.float() * self.scale[:, None]

    def rows(self, order: torch.Tensor) -> Fp8:
        return replace(self, values=_take(self.values, order), scale=self.scale[order])

    def columns(self, order: torch.Tensor) -> Fp8:
        return replace(self, values=_take(self.values.T, order).T)


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """e4m3 with a multiplier for each block of 128 x 128, the last ones cut off; activations by 128 of a row."""

    values: torch.Tensor  # float8_e4m3fn [N, K]
    scale: torch.Tensor  # float32 [ceil(N / 128), ceil(K / 128)]

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    @property
    def format(self) -> str:
        return "fp8-blocks"

    def to_float(self) -> torch.Tensor:
        rows, columns = self.shape
        scale = self.scale.repeat_interleave(FP8_BLOCK, 0)[:rows].repeat_interleave(FP8_BLOCK, 1)[:, :columns]
        return self.values.float() * scale

    def rows(self, order: torch.Tensor) -> Plain:
        """In a new order the blocks are gone."""
        return Plain(self.to_float()[order])

    def columns(self, order: torch.Tensor) -> Plain:
        return Plain(self.to_float()[:, order])


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """e2m1 codes in groups of 16 along K, an e4m3 scale each, and multipliers (kernels/nvfp4/format.py)."""

    matrix: Nvfp4Matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes

    @property
    def format(self) -> str:
        return "nvfp4"

    def to_float(self) -> torch.Tensor:
        return dequantize(self.matrix)

    def rows(self, order: torch.Tensor) -> Nvfp4:
        taken = replace(
            self.matrix,
            codes=self.matrix.codes[order],
            scales=_take(self.matrix.scales, order),
            multiplier=self.matrix.multiplier[order],
        )
        return Nvfp4(taken)

    def columns(self, order: torch.Tensor) -> Nvfp4:
        """`order` must keep groups of 16 together."""
        groups = order[::GROUP]
        expected = (groups[:, None] + torch.arange(GROUP)).flatten()
        if not torch.equal(expected, order) or bool((groups % GROUP).any()):
            raise ValueError(f"this order of columns breaks groups of {GROUP}")
        codes = self.matrix.codes[:, order[::2] // 2]
        scales = _take(self.matrix.scales.T, groups // GROUP).T.contiguous()
        return Nvfp4(replace(self.matrix, codes=codes, scales=scales))


Matrix = Plain | Fp8 | Fp8Blocks | Nvfp4


def _take(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows of a float8 tensor; torch indexes bytes everywhere, float8 not."""
    return values.contiguous().view(torch.uint8)[order].view(torch.float8_e4m3fn)

"""The decode step with FP8 products through torch's library kernels: what NVFP4 is compared with besides our own FP8.

W8A8: rows are quantised by one launch each, then `torch._scaled_mm` multiplies, with a multiplier for each row of both
sides or with one for all. Everything between the products is the same as in our step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from kernels.hybrid_step import DecodeStep, StepMatrix, Trunk

Scales = Literal["row", "one"]


@dataclass(eq=False)
class LibraryStep(DecodeStep):
    scales: Scales = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one = torch.ones((), device=self._h.device)
        self._multiplier = torch.ones(self.batch, 1, device=self._h.device)

    def _product(self, name: str, matrix: StepMatrix, x: torch.Tensor, *, normed: bool) -> torch.Tensor:
        if self.only == "small":
            return self._bf16_parts(matrix)
        values = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        assert matrix.multiplier is not None, "these matrices keep their multipliers"
        if self.scales == "one":  # a multiplier of x found beforehand: the least that quantising may cost
            values.copy_(x)
            scale_a, scale_b = self._one, matrix.multiplier[0]
        else:
            from kernels.fp8.device import quantize_rows_kernel

            block = 1 << (x.shape[1] - 1).bit_length()
            quantize_rows_kernel[(self.batch,)](x, values, self._multiplier, x.shape[1], BLOCK=block, num_warps=16)
            scale_a, scale_b = self._multiplier, matrix.multiplier[None, :]
        return torch._scaled_mm(
            values, matrix.codes.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True
        )[None]


def plain_fp8(trunk: Trunk) -> Trunk:
    """The same bytes as rows of e4m3, in the shape of bf16 matrices, which are multiplied by a library."""

    def matrix(packed: StepMatrix) -> StepMatrix:
        codes = packed.codes.view(torch.float8_e4m3fn).view(packed.rows, packed.columns)
        return replace(packed, kind="bf16", codes=codes)

    def converted(part: Any) -> Any:  # any dataclass that has matrices among its fields
        found = {field.name: getattr(part, field.name) for field in fields(part)}
        return replace(part, **{name: matrix(value) for name, value in found.items() if isinstance(value, StepMatrix)})

    layers = [replace(converted(layer), mixer=converted(layer.mixer)) for layer in trunk.layers]
    whole: Trunk = replace(converted(trunk), layers=layers)
    return whole

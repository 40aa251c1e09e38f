"""Matrix products whose rows do not depend on their neighbours: the ground that equal answers under load stand on.

A BLAS chooses its kernel, and with it the order of its sums, by the number of rows; one prompt would then give other
bits alone than in a batch. The default multiplies float32 activations with float16 weights packed for fbgemm, whose
kernels sum each row in one order for any number of rows: `fbgemm.PackedWeight` on one thread, `HalfProduct` on several.
`FloatProduct` is the float32 reference: it runs in blocks of one fixed number of rows.

FP8 and NVFP4 matrices go through the same products: their codes, times the scales of NVFP4 groups, are exact in
float16, and what is left of the scale is one multiplier a row of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from inference_grpc.model import fbgemm
from inference_grpc.model.formats import FP8_BLOCK, Fp8, Fp8Blocks, Matrix, Nvfp4
from inference_grpc.model.quantization import (
    round_activations_fp8,
    round_activations_fp8_groups,
    round_activations_nvfp4,
)
from kernels.nvfp4.reference import unscaled

Precision = Literal["float16", "float32"]
REFERENCE_ROWS = 16


# The matrices of a product, and what goes into it: [rows, in].
Observe = Callable[[Sequence[Matrix], torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Numerics:
    """How matrices are applied on this device."""

    product: Precision = "float16"
    # Whether activations are rounded to the format of the weights before the product (W8A8, W4A4).
    rounds_fp8: bool = True
    rounds_nvfp4: bool = False
    observe: Observe | None = None


@dataclass(frozen=True, slots=True)
class Rounding:
    """Activations as the format of the weights holds them; equal ones can share a product."""

    format: Literal["fp8", "fp8-blocks", "nvfp4"]
    scale: float | None = None  # None: each row, or each block of it, by its own maximum

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.format == "fp8":
            return round_activations_fp8(x, scale=self.scale)
        if self.format == "fp8-blocks":
            return round_activations_fp8_groups(x, group=FP8_BLOCK)
        return round_activations_nvfp4(x, multiplier=self.scale)


class Linear(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] float32 to [rows, out] float32."""


class HalfProduct:
    """The same through torch's own operator: packed by it, and spread over its threads."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
        self._apply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._apply(x, self._packed)
        return product


class FloatProduct:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        padding = -rows % REFERENCE_ROWS
        padded = torch.nn.functional.pad(x, (0, 0, 0, padding)) if padding else x
        blocks = [torch.nn.functional.linear(block, self._weight) for block in torch.split(padded, REFERENCE_ROWS)]
        return torch.cat(blocks)[:rows]


class ScaledLinear:
    """A product between the rounding of activations and the multipliers of rows."""

    def __init__(self, product: Linear, multiplier: torch.Tensor | None, rounding: Rounding | None) -> None:
        self.product = product
        self.multiplier = multiplier
        self.rounding = rounding

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.product(x if self.rounding is None else self.rounding(x))
        return y if self.multiplier is None else y.mul_(self.multiplier)


class ObservedLinear:
    def __init__(self, linear: Linear, matrices: Sequence[Matrix], observe: Observe) -> None:
        self._linear = linear
        self._matrices = matrices
        self._observe = observe

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self._observe(self._matrices, x)
        return self._linear(x)


class StackedLinear:
    """Matrices that cannot be one product, because their activations are rounded differently."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def make_product(weight: torch.Tensor, precision: Precision) -> Linear:
    """`weight` is [out, in] float32; the caller may drop it afterwards."""
    if precision == "float32":
        return FloatProduct(weight)
    if packs_itself():
        return fbgemm.PackedWeight(fbgemm.pack(weight), *weight.shape)
    return HalfProduct(weight)


def packs_itself() -> bool:
    """Whether float16 weights are packed here, into memory that can be kept, and not by torch."""
    return torch.get_num_threads() == 1 and fbgemm.layout() is not None


def make_linear(matrices: Sequence[Matrix], numerics: Numerics) -> Linear:
    """One layer of the matrices stacked by rows: a single product where their activations are rounded alike."""
    linear = _make_stacked(matrices, numerics)
    return linear if numerics.observe is None else ObservedLinear(linear, matrices, numerics.observe)


def _make_stacked(matrices: Sequence[Matrix], numerics: Numerics) -> Linear:
    roundings = [_rounding(matrix, numerics) for matrix in matrices]
    if len(set(roundings)) > 1:
        parts = [_make_one([matrix], rounding, numerics) for matrix, rounding in zip(matrices, roundings, strict=True)]
        return StackedLinear(parts)
    return _make_one(matrices, roundings[0], numerics)


def _make_one(matrices: Sequence[Matrix], rounding: Rounding | None, numerics: Numerics) -> Linear:
    halves = [_split(matrix) for matrix in matrices]
    product = make_product(torch.cat([values for values, _ in halves]), numerics.product)
    multiplier = None
    if any(scale is not None for _, scale in halves):
        multiplier = torch.cat([torch.ones(len(values)) if scale is None else scale for values, scale in halves])
    return product if multiplier is None and rounding is None else ScaledLinear(product, multiplier, rounding)


def _split(matrix: Matrix) -> tuple[torch.Tensor, torch.Tensor | None]:
    """float32 values that float16 holds exactly where the format allows it, and the multipliers of the rows."""
    if isinstance(matrix, Fp8):
        return matrix.values.float(), matrix.scale
    if isinstance(matrix, Nvfp4):
        return unscaled(matrix.matrix), matrix.matrix.multiplier
    return matrix.to_float(), None


def _rounding(matrix: Matrix, numerics: Numerics) -> Rounding | None:
    if isinstance(matrix, Fp8) and numerics.rounds_fp8:
        return Rounding("fp8", matrix.input_scale)
    if isinstance(matrix, Fp8Blocks) and numerics.rounds_fp8:
        return Rounding("fp8-blocks")
    if isinstance(matrix, Nvfp4) and numerics.rounds_nvfp4:
        return Rounding("nvfp4", matrix.matrix.input_multiplier)
    return None


def rows_are_independent(linear: Linear, in_features: int) -> bool:
    """Whether a row has the same bits in batches of every size tried. Milliseconds; run once at start on one matrix."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(130, in_features, generator=generator)
    whole = linear(x)
    return all(torch.equal(linear(x[:rows]), whole[:rows]) for rows in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64))

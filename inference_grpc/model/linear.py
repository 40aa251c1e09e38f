"""Matrix products whose rows do not depend on their neighbours: the ground that equal answers under load stand on.

A BLAS chooses its kernel, and with it the order of its sums, by the number of rows; one prompt would then give other
bits alone than in a batch. `HalfProduct` (the default) multiplies float32 activations with float16 weights packed for
fbgemm, whose kernels sum each row in one order for any number of rows. `FloatProduct` is the float32 reference: it runs
in blocks of one fixed number of rows.

FP8 and NVFP4 matrices go through the same products: their codes, times the scales of NVFP4 groups, are exact in
float16, and what is left of the scale is one multiplier a row of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch

from inference_grpc.model.formats import FP8_BLOCK, Fp8, Fp8Blocks, Matrix, Nvfp4
from inference_grpc.model.quantization import (
    round_activations_fp8,
    round_activations_fp8_groups,
    round_activations_nvfp4,
)
from kernels.nvfp4.reference import unscaled

Precision = Literal["float16", "float32"]
Rounding = Callable[[torch.Tensor], torch.Tensor]
REFERENCE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Numerics:
    """How matrices are applied on this device."""

    product: Precision = "float16"
    # Whether activations are rounded to the format of the weights before the product (W8A8, W4A4).
    rounds_fp8: bool = True
    rounds_nvfp4: bool = False


class Linear(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] float32 to [rows, out] float32."""


class HalfProduct:
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
        self._product = product
        self._multiplier = multiplier
        self._rounding = rounding

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self._product(x if self._rounding is None else self._rounding(x))
        return y if self._multiplier is None else y.mul_(self._multiplier)


class StackedLinear:
    """Matrices that cannot be one product, because their activations are rounded differently."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], dim=-1)


def make_product(weight: torch.Tensor, precision: Precision) -> Linear:
    """`weight` is [out, in] float32; the caller may drop it afterwards."""
    return HalfProduct(weight) if precision == "float16" else FloatProduct(weight)


def make_linear(matrices: Sequence[Matrix], numerics: Numerics) -> Linear:
    """One layer of the matrices stacked by rows: a single product where their activations are rounded alike."""
    groups: dict[object, list[Matrix]] = {}
    for matrix in matrices:
        groups.setdefault(_rounding_key(matrix, numerics), []).append(matrix)
    if len(groups) > 1:  # in the order of the rows, which grouping would break
        return StackedLinear([_make_one([matrix], numerics) for matrix in matrices])
    return _make_one(list(matrices), numerics)


def _make_one(matrices: list[Matrix], numerics: Numerics) -> Linear:
    halves = [_split(matrix) for matrix in matrices]
    product = make_product(torch.cat([values for values, _ in halves]), numerics.product)
    multiplier = None
    if any(scale is not None for _, scale in halves):
        multiplier = torch.cat([torch.ones(len(values)) if scale is None else scale for values, scale in halves])
    rounding = _rounding(matrices[0], numerics)
    return product if multiplier is None and rounding is None else ScaledLinear(product, multiplier, rounding)


def _split(matrix: Matrix) -> tuple[torch.Tensor, torch.Tensor | None]:
    """float32 values that float16 holds exactly where the format allows it, and the multipliers of the rows."""
    if isinstance(matrix, Fp8):
        return matrix.values.float(), matrix.scale
    if isinstance(matrix, Nvfp4):
        return unscaled(matrix.matrix), matrix.matrix.multiplier
    return matrix.to_float(), None


def _rounding_key(matrix: Matrix, numerics: Numerics) -> object:
    if isinstance(matrix, Fp8) and numerics.rounds_fp8:
        return "fp8", matrix.input_scale
    if isinstance(matrix, Fp8Blocks) and numerics.rounds_fp8:
        return "fp8-blocks"
    if isinstance(matrix, Nvfp4) and numerics.rounds_nvfp4:
        return "nvfp4", matrix.matrix.input_multiplier
    return None


def _rounding(matrix: Matrix, numerics: Numerics) -> Rounding | None:
    if isinstance(matrix, Fp8) and numerics.rounds_fp8:
        return partial(round_activations_fp8, scale=matrix.input_scale)
    if isinstance(matrix, Fp8Blocks) and numerics.rounds_fp8:
        return partial(round_activations_fp8_groups, group=FP8_BLOCK)
    if isinstance(matrix, Nvfp4) and numerics.rounds_nvfp4:
        return partial(round_activations_nvfp4, multiplier=matrix.matrix.input_multiplier)
    return None


def rows_are_independent(linear: Linear, in_features: int) -> bool:
    """Whether a row has the same bits in batches of every size tried. Milliseconds; run once at start on one matrix."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(130, in_features, generator=generator)
    whole = linear(x)
    return all(torch.equal(linear(x[:rows]), whole[:rows]) for rows in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64))

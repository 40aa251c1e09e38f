"""Matrix products whose rows do not depend on their neighbours: the ground that equal answers under load stand on.

A BLAS chooses its kernel, and with it the order of its sums, by the number of rows; one prompt would then give other
bits alone than in a batch. `HalfLinear` (the default) multiplies float32 activations with float16 weights packed for
fbgemm, whose kernels sum each row in one order for any number of rows. `FloatLinear` is the float32 reference: it runs
in blocks of one fixed number of rows.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch

Precision = Literal["float16", "float32"]
REFERENCE_ROWS = 16


class Linear(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] float32 to [rows, out] float32."""


class HalfLinear:
    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
        self._apply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._apply(x, self._packed)
        return product


class FloatLinear:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        padding = -rows % REFERENCE_ROWS
        padded = torch.nn.functional.pad(x, (0, 0, 0, padding)) if padding else x
        blocks = [torch.nn.functional.linear(block, self._weight) for block in torch.split(padded, REFERENCE_ROWS)]
        return torch.cat(blocks)[:rows]


def make_linear(weight: torch.Tensor, precision: Precision) -> Linear:
    """`weight` is [out, in] float32; the caller may drop it afterwards."""
    return HalfLinear(weight) if precision == "float16" else FloatLinear(weight)


def rows_are_independent(linear: Linear, in_features: int) -> bool:
    """Whether a row has the same bits in batches of every size tried. Milliseconds; run once at start on one matrix."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(130, in_features, generator=generator)
    whole = linear(x)
    return all(torch.equal(linear(x[:rows]), whole[:rows]) for rows in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64))

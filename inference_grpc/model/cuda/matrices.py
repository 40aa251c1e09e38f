"""Matrices of a model on the device: packed for the decode kernels, or plain; and their products with many rows.

Weights are narrow, activations are not: rows are bfloat16 (float16 beside FP8 in the fused step) in every format. A
pair of matrices [gate; up] lies interleaved by eight rows, as the decode kernels want it, in both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad, silu

from inference_grpc.model.formats import Fp8, Matrix, Nvfp4
from kernels.hybrid_step import MOST_ROWS, ROWS_TYPE, StepMatrix
from kernels.nvfp4.format import Nvfp4Matrix, stack
from kernels.nvfp4.pack import TILE_ROWS, pair_rows

INVARIANT_ROWS = 256  # of one product, where rows must not depend on how many there are


def steady_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x wᵀ of [R, columns] and [rows, columns], in one shape of product for any R: which one the library takes, and
    with it the order of its sums, depends on the number of rows."""
    blocks = torch.split(pad(x, (0, 0, 0, -len(x) % INVARIANT_ROWS)), INVARIANT_ROWS)
    return torch.cat([block @ w.T for block in blocks])[: len(x)]


class Workspace:
    """Room for one matrix in bfloat16; products of many rows run one after another on one stream."""

    def __init__(self) -> None:
        self._values = torch.empty(0)

    def matrix(self, rows: int, columns: int, device: torch.device) -> torch.Tensor:
        if self._values.numel() < rows * columns or self._values.device != device:
            self._values = torch.empty(rows * columns, dtype=torch.bfloat16, device=device)
        return self._values[: rows * columns].view(rows, columns)


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    step: StepMatrix  # rows may be padded
    outputs: int  # rows that mean something
    is_packed: bool
    is_invariant: bool
    workspace: Workspace

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[R, columns] to [R, outputs], float32 or bfloat16."""
        if not self.is_packed:
            wide, w = x.float(), self._plain().float()
            y = steady_product(wide, w) if self.is_invariant else wide @ w.T
            return (y if self.step.multiplier is None else y * self.step.multiplier)[:, : self.outputs]
        if self.step.kind != "bf16" and len(x) <= MOST_ROWS and not self.is_invariant:
            return self.few(x)
        return self._many(x, pairs=False)[:, : self.outputs]

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Of a pair: silu(gate) times up, [R, outputs / 2]."""
        kind = self.step.kind
        if self.is_packed and kind != "bf16" and (len(x) > MOST_ROWS or self.is_invariant):
            return self._many(x, pairs=True)
        pairs = self.product(x).view(len(x), -1, 2, 8)
        return (silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(len(x), -1)

    def few(self, x: torch.Tensor) -> torch.Tensor:
        """The decode kernel, MOST_ROWS rows at a time; float32."""
        if len(x) > MOST_ROWS:
            return torch.cat([self.few(part) for part in torch.split(x, MOST_ROWS)])
        from kernels.native.gemm import launch, usual_split

        matrix = self.step
        if matrix.kind == "bf16" or not self.is_packed:
            return self.product(x).float()
        assert matrix.multiplier is not None, "a packed matrix has multipliers"
        sizes = matrix.rows, matrix.columns
        splits, k_warps = usual_split(matrix.kind, *sizes, len(x), invariant=self.is_invariant)
        y = torch.empty(splits, len(x), matrix.rows, device=x.device)
        launch(
            matrix.kind,
            x.to(ROWS_TYPE[matrix.kind]).contiguous(),
            matrix.codes,
            matrix.scales,
            matrix.multiplier,
            y,
            rows=matrix.rows,
            columns=matrix.columns,
            splits=splits,
            k_warps=k_warps,
        )
        return y.sum(0)[:, : self.outputs]

    def _many(self, x: torch.Tensor, *, pairs: bool) -> torch.Tensor:
        """The matrix once in bfloat16, the library's product, then the multipliers (and SiLU times the partner)."""
        from kernels.nvfp4.device import scale_kernel

        matrix, w = self.step, self._unpacked()
        x = x.to(torch.bfloat16)
        product = steady_product(x, w) if self.is_invariant else x @ w.T
        if matrix.multiplier is None:
            return product
        width, block = matrix.rows // 2 if pairs else matrix.rows, 1024
        y = torch.empty(len(x), width, dtype=torch.bfloat16, device=x.device)
        scale_kernel[(len(x), -(-width // block))](product, matrix.multiplier, y, matrix.rows, PAIRS=pairs, BLOCK=block)
        return y

    def _unpacked(self) -> torch.Tensor:
        from kernels.fp8.pack import unpack
        from kernels.native.gemm import dequantize

        matrix = self.step
        if matrix.kind == "bf16":
            return matrix.codes
        w = self.workspace.matrix(matrix.rows, matrix.columns, matrix.codes.device)
        if matrix.kind == "nvfp4":
            assert matrix.scales is not None
            dequantize(matrix.codes, matrix.scales, w)
        else:
            w.copy_(unpack(matrix.codes, matrix.rows, matrix.columns))
        return w

    def _plain(self) -> torch.Tensor:
        """code x scale [rows, columns], exact, of a matrix that is not packed."""
        from kernels.nvfp4.reference import unscaled

        matrix = self.step
        if matrix.kind == "nvfp4":
            assert matrix.scales is not None
            assert matrix.multiplier is not None
            return unscaled(Nvfp4Matrix(matrix.codes, matrix.scales, matrix.multiplier))
        return matrix.codes


class MatrixMaker:
    """Brings matrices to the device in one form."""

    def __init__(self, device: torch.device, *, packed: bool, invariant: bool = False) -> None:
        self._device, self._packed, self._invariant = device, packed, invariant
        self._workspace = Workspace()

    def make(self, matrices: Sequence[Matrix], *, pairs: bool = False) -> DeviceMatrix:
        """The matrices stacked by rows, in the format that they share, else in bfloat16. `pairs`: they are gate and
        up."""
        outputs = sum(matrix.shape[0] for matrix in matrices)
        if all(isinstance(matrix, Nvfp4) for matrix in matrices):
            step = self._nvfp4([matrix.matrix for matrix in matrices if isinstance(matrix, Nvfp4)], pairs)
        elif all(isinstance(matrix, Fp8) for matrix in matrices):
            step = self._fp8([matrix for matrix in matrices if isinstance(matrix, Fp8)], pairs)
        else:
            step = self._bf16(matrices, pairs)
        return DeviceMatrix(step, outputs, self._packed, self._invariant, self._workspace)

    def _nvfp4(self, matrices: list[Nvfp4Matrix], pairs: bool) -> StepMatrix:
        from kernels.nvfp4.pack import pack

        whole = stack(*matrices)
        missing = -whole.shape[0] % TILE_ROWS
        codes, scales, multiplier = (
            pad(part, (0, 0, 0, missing)) if part.ndim == 2 else pad(part, (0, missing), value=1.0)
            for part in (
                whole.codes.to(self._device),
                whole.scales.view(torch.uint8).to(self._device),
                whole.multiplier.to(self._device),
            )
        )
        rows, columns = codes.shape[0], codes.shape[1] * 2
        if self._packed:
            packed = pack(codes, scales.view(torch.float8_e4m3fn), multiplier, pairs=pairs)
            return StepMatrix("nvfp4", packed.codes, packed.scales, packed.multiplier, rows, columns)
        if pairs:
            order = pair_rows(rows, 8, self._device)
            codes, scales, multiplier = codes[order], scales[order], multiplier[order]
        return StepMatrix("nvfp4", codes, scales.view(torch.float8_e4m3fn), multiplier, rows, columns)

    def _fp8(self, matrices: list[Fp8], pairs: bool) -> StepMatrix:
        from kernels.fp8.pack import pack

        values = torch.cat([matrix.values.view(torch.uint8) for matrix in matrices]).to(self._device)
        multiplier = torch.cat([matrix.scale for matrix in matrices]).to(self._device)
        missing = -len(values) % TILE_ROWS
        values, multiplier = pad(values, (0, 0, 0, missing)), pad(multiplier, (0, missing), value=1.0)
        rows, columns = values.shape
        if self._packed:
            packed = pack(values.view(torch.float8_e4m3fn), multiplier, pairs=pairs)
            return StepMatrix("fp8", packed.values, None, packed.multiplier, rows, columns)
        if pairs:
            order = pair_rows(rows, 8, self._device)
            values, multiplier = values[order], multiplier[order]
        return StepMatrix("fp8", values.view(torch.float8_e4m3fn), None, multiplier, rows, columns)

    def _bf16(self, matrices: Sequence[Matrix], pairs: bool) -> StepMatrix:
        values = torch.cat([matrix.to_float().to(torch.bfloat16) for matrix in matrices]).to(self._device)
        if pairs:
            values = values[pair_rows(len(values), 8, self._device)]
        return StepMatrix("bf16", values, None, None, values.shape[0], values.shape[1])

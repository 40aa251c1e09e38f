"""The order in which the Hopper decode kernel wants FP8 weights; see kernels/nvfp4/pack.py for the idea."""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE_ROWS = 16
TILE_K = 64


@dataclass(frozen=True)
class PackedFp8:
    """An e4m3 matrix in the decode kernel's order: [N / 16, K / 64, 2 (rows g | rows g + 8), 32 lanes, 16 values]."""

    values: torch.Tensor
    multiplier: torch.Tensor  # f32 [N]
    rows: int
    columns: int
    pairs_interleaved: bool

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.multiplier.nbytes


def pack(values: torch.Tensor, multiplier: torch.Tensor, *, pairs: bool = False) -> PackedFp8:
    """Pack e4m3 [N, K] with a multiplier per row. `pairs`: [gate; up], interleaved by eight rows."""
    from kernels.nvfp4.pack import pair_rows

    rows, columns = values.shape
    if rows % TILE_ROWS or columns % TILE_K:
        raise ValueError(
            f"cannot pack [{rows}, {columns}]: rows must be a multiple of {TILE_ROWS}, "
            f"columns of {TILE_K}; pad the matrix"
        )
    data = values.view(torch.uint8)
    if pairs:
        order = pair_rows(rows, 8, values.device)
        data, multiplier = data[order], multiplier[order]
    # row = tile * 16 + pair * 8 + g; column = step * 64 + t * 16 + i
    tiles = data.view(rows // 16, 2, 8, columns // 64, 4, 16).permute(0, 3, 1, 2, 4, 5)
    packed = tiles.reshape(rows // 16, columns // 64, 2, 32, 16).contiguous()
    return PackedFp8(packed, multiplier.to(torch.float32).contiguous(), rows, columns, pairs)


def unpack(packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The e4m3 values [N, K] again, pairs still interleaved."""
    # Sixteen values travel as one element of sixteen bytes.
    runs = packed.contiguous().view(torch.complex128).view(rows // 16, columns // 64, 2, 8, 4)
    straight = runs.permute(0, 2, 3, 1, 4).contiguous()
    return straight.view(torch.uint8).view(torch.float8_e4m3fn).view(rows, columns)

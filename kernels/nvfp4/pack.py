"""The order in which the Hopper decode kernel wants its weights; done once, at load.

A tile is 16 output rows by 64 values of K: four `mma.m16n8k16`. Lane 4 g + t owns, of rows g and g + 8, the sixteen
values
16 t … 16 t + 15 of the tile: exactly one scale group of each row. So a lane needs 16 bytes of codes and 2 scale bytes
of a tile, and nothing of another lane:

    codes  [N / 16, K / 64, 32 lanes, 16 bytes (row g | row g + 8)]
    scales [N / 16, K / 64, 32 lanes, 2 bytes]

Within a 32-bit word (eight codes) the bits stand so that each pair of codes becomes a pair of bf16 by one or two
operations (stream_gemm.cu, `decode8`): with pair j rotated right by 0, 3 or 6 bits, a half's magnitude stands in bits
8…6 and its sign in bit 15; pair 3 is spread over the bits that are left and gathered by a multiplication. The value is
then code x 2^-126, subnormals included. Scales are re-coded from e4m3 to an unsigned e5m3, which holds every e4m3
value as a
normal number, so that a scale becomes bf16 by one multiply-add. Both steps are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE_ROWS = 16
TILE_K = 64


@dataclass(frozen=True)
class PackedNvfp4:
    """A weight matrix in the decode kernel's order."""

    codes: torch.Tensor  # uint8 [N / 16, K / 64, 32, 16]
    scales: torch.Tensor  # uint8 [N / 16, K / 64, 32, 2]
    multiplier: torch.Tensor  # f32 [N]
    rows: int
    columns: int
    pairs_interleaved: bool  # rows are blocks of 8 gate rows and their 8 up rows

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.multiplier.nbytes


def pair_rows(rows: int, block: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Order of the rows of a stacked [gate; up] matrix in which `block` gate rows are followed by their up rows."""
    half = torch.arange(rows // 2, device=device).view(-1, block)
    return torch.stack([half, half + rows // 2], dim=1).reshape(-1)


def _to_int32(words: torch.Tensor) -> torch.Tensor:
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def pack_words(codes: torch.Tensor) -> torch.Tensor:
    """Sixteen-value codes [..., 8] in 0…15 to one int32 word each, in the bit plan above."""
    c = codes.to(torch.int64).reshape(*codes.shape[:-1], 4, 2)  # pair, half
    sign, magnitude = c >> 3, c & 7
    word = torch.zeros(c.shape[:-2], dtype=torch.int64, device=c.device)
    for pair, turn in ((0, 0), (1, 3), (2, 6)):
        for half in (0, 1):
            word |= magnitude[..., pair, half] << (6 + 16 * half + turn)
            word |= sign[..., pair, half] << ((15 + 16 * half + turn) % 32)
    for half in (0, 1):
        m, s = magnitude[..., 3, half], sign[..., 3, half]
        word |= ((m >> 2) | (s << 1) | ((m & 3) << 3)) << (16 * half)
    return _to_int32(word)


def recode_scales(scales: torch.Tensor) -> torch.Tensor:
    """e4m3 scales to unsigned e5m3 bytes of the same value (bias 10); zero becomes the smallest, see `pack`."""
    mantissa, exponent = torch.frexp(scales.to(torch.float32))  # mantissa in [0.5, 1)
    byte = ((exponent.to(torch.int64) + 9) << 3) | torch.round((mantissa * 2 - 1) * 8).to(torch.int64)
    return torch.where(scales.to(torch.float32) > 0, byte, torch.zeros_like(byte)).to(torch.uint8)


def pack(codes: torch.Tensor, scales: torch.Tensor, multiplier: torch.Tensor, *, pairs: bool = False) -> PackedNvfp4:
    """Pack canonical codes uint8 [N, K / 2] (low nibble first) with e4m3 scales [N, K / 16] and multipliers [N].

    `pairs`: the matrix is [gate; up]; its rows are interleaved by eight, so that the kernel can apply SiLU and
    multiply.
    Groups whose scale is zero get zero codes, since the packed scale cannot be zero.
    """
    rows, columns = codes.shape[0], codes.shape[1] * 2
    if rows % TILE_ROWS or columns % TILE_K:
        raise ValueError(
            f"cannot pack [{rows}, {columns}]: rows must be a multiple of {TILE_ROWS}, "
            f"columns of {TILE_K}; pad the matrix"
        )
    if pairs:
        order = pair_rows(rows, 8, codes.device)
        codes, scales, multiplier = (
            codes[order],
            scales.view(torch.uint8)[order].view(torch.float8_e4m3fn),
            multiplier[order],
        )
    values = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(rows, columns)
    values = torch.where((scales.to(torch.float32) == 0).repeat_interleave(16, dim=1), torch.zeros_like(values), values)
    # row = tile * 16 + pair * 8 + g; column = step * 64 + t * 16 + word * 8 + i
    words = pack_words(values.view(rows // 16, 2, 8, columns // 64, 4, 2, 8)).permute(0, 3, 2, 4, 1, 5)
    packed = words.reshape(rows // 16, columns // 64, 32, 4).contiguous().view(torch.uint8)
    groups = recode_scales(scales).view(rows // 16, 2, 8, columns // 64, 4).permute(0, 3, 2, 4, 1)
    packed_scales = groups.reshape(rows // 16, columns // 64, 32, 2).contiguous()
    return PackedNvfp4(packed, packed_scales, multiplier.to(torch.float32).contiguous(), rows, columns, pairs)

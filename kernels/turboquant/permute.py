"""PTX that turns three-bit codes into float16 centroids by byte permutations: three operations a value.

Four values at a time, from a byte of magnitudes and a byte of signs each: sign and magnitude make an index in a nibble,
then two permutations look up the high and the low bytes of the centroids.
"""

from __future__ import annotations

from kernels.turboquant.reference import CENTROID_BITS


def _table(bits: list[int], byte: int) -> str:
    return "0x" + "".join(f"{(value >> (8 * byte)) & 0xFF:02X}" for value in reversed(bits))


def permute_ptx(quarter: int) -> str:
    """$2 and $3 hold four bytes each: magnitudes in bits 2 * quarter and above, the sign in bit 2 * quarter. $0 and $1
    are the four centroids."""
    positive, negative = list(CENTROID_BITS), [bits | 0x8000 for bits in CENTROID_BITS]
    shift = 2 * quarter - 2
    sign = f"shl.b32 s, $3, {-shift};" if shift < 0 else f"shr.b32 s, $3, {shift};"
    return f"""
{{
.reg .b32 x, s, h, l;
shr.b32 x, $2, {2 * quarter};
and.b32 x, x, 0x03030303;
{sign}
and.b32 s, s, 0x04040404;
or.b32 x, x, s;
shr.b32 s, x, 4;
or.b32 x, x, s;
prmt.b32 x, x, 0, 0x0020;
prmt.b32 h, {_table(positive, 1)}, {_table(negative, 1)}, x;
prmt.b32 l, {_table(positive, 0)}, {_table(negative, 0)}, x;
prmt.b32 $0, l, h, 0x5140;
prmt.b32 $1, l, h, 0x7362;
}}
"""

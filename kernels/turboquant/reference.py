"""TurboQuant at three bits in plain PyTorch: rotate, nearest of eight centroids, one scale a vector.

README.md has the mathematics. A vector x of size D is stored as D two-bit magnitudes, D signs and one float16 scale.
Byte b of
`low` [D / 4] holds the magnitudes of elements b, b + D/4, b + 2D/4, b + 3D/4 in bits 0-1, 2-3, 4-5, 6-7; bit i of
byte b of
`signs` [D / 8] is the sign of element b + i D/8. All stored values are in the rotated basis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# Lloyd-Max for a coordinate of a random unit vector of size 256, in units of 1 / 16, rounded to bfloat16 so that the
# kernels
# decode to exactly these.
CENTROIDS = (0.2451171875, 0.75390625, 1.34375, 2.140625)
# The same as float16 bits: bfloat16 values of this size are float16 values too.
CENTROID_BITS = (0x33D8, 0x3A08, 0x3D60, 0x4048)
THRESHOLDS = (0.499714, 1.047457, 1.740958)
BITS = 3
SIGN_SEED = 0x7F4A7C15


@dataclass(frozen=True)
class Encoded:
    low: torch.Tensor  # uint8 [..., D / 4]
    signs: torch.Tensor  # uint8 [..., D / 8]
    scale: torch.Tensor  # f16 [...]

    @property
    def nbytes(self) -> int:
        return self.low.nbytes + self.signs.nbytes + self.scale.nbytes


def signs(size: int, seed: int = SIGN_SEED) -> torch.Tensor:
    """The fixed ±1 of the rotation: a pure function of size and seed, the same on every machine."""
    state, out = seed & 0xFFFFFFFF, []
    for _ in range(size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(1.0 if state >> 31 else -1.0)
    return torch.tensor(out)


def hadamard(size: int) -> torch.Tensor:
    """Sylvester's matrix over √size: symmetric and orthogonal."""
    if size & (size - 1):
        raise ValueError(f"the rotation needs a power of two, not {size}")
    h = torch.ones(1, 1)
    while h.shape[0] < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return torch.div(h, size**0.5)


def rotation(size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Π = H diag(signs), as a matrix: x Πᵀ rotates rows, y Π takes them back."""
    return (hadamard(size) * signs(size)[None, :]).to(device=device, dtype=dtype)


def rotate(x: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, rotation(x.shape[-1], x.device, x.dtype).T)


def unrotate(y: torch.Tensor) -> torch.Tensor:
    return torch.matmul(y, rotation(y.shape[-1], y.device, y.dtype))


def encode(rotated: torch.Tensor, scale: Literal["unbiased", "least_squares"]) -> Encoded:
    """Encode rotated vectors [..., D]. Keys take the unbiased scale r / ⟨ŷ, c⟩, values the least-squares r ⟨ŷ, c⟩ /
    ‖c‖²."""
    y = rotated.to(torch.float32)
    size = y.shape[-1]
    length = y.norm(dim=-1, keepdim=True)
    unit = torch.where(length > 0, y / length.clamp_min(1e-30), torch.zeros_like(y)) * size**0.5
    magnitude = sum((unit.abs() > t).to(torch.uint8) for t in THRESHOLDS)
    assert isinstance(magnitude, torch.Tensor)
    negative = torch.signbit(unit)
    c = _value(magnitude, negative)
    along = (unit * c).sum(-1)  # √D ŷ · √D c
    norm = length[..., 0]
    if scale == "unbiased":
        stored = torch.where(along > 0, norm * size**0.5 / along.clamp_min(1e-30), torch.zeros_like(norm))
    else:
        stored = norm * along / (c.square().sum(-1) * size**0.5)
    quarters = magnitude.reshape(*magnitude.shape[:-1], 4, size // 4)
    low = quarters[..., 0, :] | (quarters[..., 1, :] << 2) | (quarters[..., 2, :] << 4) | (quarters[..., 3, :] << 6)
    eighths = negative.to(torch.uint8).reshape(*negative.shape[:-1], 8, size // 8)
    plane = torch.zeros_like(eighths[..., 0, :])
    for i in range(8):
        plane |= eighths[..., i, :] << i
    return Encoded(low, plane, stored.to(torch.float16))


def _value(magnitude: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(CENTROIDS, device=magnitude.device)
    value = table[magnitude.to(torch.int64)]
    return torch.where(negative, -value, value)


def decode(encoded: Encoded) -> torch.Tensor:
    """Rotated vectors, f32 [..., D]: scale times centroid."""
    magnitude = torch.cat([(encoded.low >> s) & 3 for s in (0, 2, 4, 6)], dim=-1)
    negative = torch.cat([(encoded.signs >> i) & 1 for i in range(8)], dim=-1).bool()
    return _value(magnitude, negative) * encoded.scale.to(torch.float32)[..., None]

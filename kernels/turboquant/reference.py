"""TurboQuant at three bits in plain PyTorch: rotate, nearest of eight centroids, one scale a vector.

README.md has the mathematics. A vector x of size D is stored as D codes of three bits (a magnitude of two, a sign) and
one float16 scale. `pack` puts n codes into n / 2 nibbles and a quarter: those of the first three quarters stand in the
lower three bits of a nibble each, and the bits of the last quarter, from the highest on, in the top bits of the three
nibbles at its place. All stored values are in the rotated basis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# Lloyd-Max for a coordinate of a random unit vector of size 256, in units of 1 / 16: 0.24476, 0.75467, 1.34025 and
# 2.14167, as whole numbers over 49, so that a byte holds one and a product with them is exact.
CENTROID_STEPS = (12, 37, 66, 105)
CENTROIDS = tuple(step / 49 for step in CENTROID_STEPS)
THRESHOLDS = (0.499714, 1.047457, 1.740958)
BITS = 3
SIGN_SEED = 0x7F4A7C15


@dataclass(frozen=True)
class Encoded:
    codes: torch.Tensor  # uint8, three bits a value
    scale: torch.Tensor  # f16, one a vector

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


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


def quantize(rotated: torch.Tensor, scale: Literal["unbiased", "least_squares"]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 (magnitude, and 4 for a sign) of rotated vectors [..., D], and a float16 scale for each [...].

    Keys take the unbiased scale r / ⟨ŷ, c⟩, values the least-squares r ⟨ŷ, c⟩ / ‖c‖²."""
    y = rotated.to(torch.float32)
    size = y.shape[-1]
    length = y.norm(dim=-1, keepdim=True)
    unit = torch.where(length > 0, y / length.clamp_min(1e-30), torch.zeros_like(y)) * size**0.5
    magnitude = sum((unit.abs() > t).to(torch.uint8) for t in THRESHOLDS)
    assert isinstance(magnitude, torch.Tensor)
    codes = magnitude | (torch.signbit(unit).to(torch.uint8) << 2)
    c = values_of(codes)
    along = (unit * c).sum(-1)  # √D ŷ · √D c
    norm = length[..., 0]
    if scale == "unbiased":
        stored = torch.where(along > 0, norm * size**0.5 / along.clamp_min(1e-30), torch.zeros_like(norm))
    else:
        stored = norm * along / (c.square().sum(-1) * size**0.5)
    return codes, stored.to(torch.float16)


def values_of(codes: torch.Tensor) -> torch.Tensor:
    """Centroids, float32."""
    value = torch.tensor(CENTROIDS, device=codes.device)[(codes & 3).to(torch.int64)]
    return torch.where(codes > 3, -value, value)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes [..., n] as bytes [..., 3 n / 8]."""
    lead, count = codes.shape[:-1], codes.shape[-1]
    quarters = codes.view(*lead, 4, count // 4)
    top = torch.stack([quarters[..., 3, :] >> bit & 1 for bit in (2, 1, 0)], dim=-2)
    nibbles = (quarters[..., :3, :] | top << 3).view(*lead, count * 3 // 8, 2)
    return nibbles[..., 0] | nibbles[..., 1] << 4


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """`pack` taken back."""
    lead, size = packed.shape[:-1], packed.shape[-1]
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).view(*lead, 3, size * 2 // 3)
    top = nibbles >> 3
    last = top[..., 0, :] << 2 | top[..., 1, :] << 1 | top[..., 2, :]
    return torch.cat([(nibbles & 7).flatten(-2), last], dim=-1)


def encode(rotated: torch.Tensor, scale: Literal["unbiased", "least_squares"]) -> Encoded:
    """Rotated vectors [..., D], each packed by itself."""
    codes, stored = quantize(rotated, scale)
    return Encoded(pack(codes), stored)


def decode(encoded: Encoded) -> torch.Tensor:
    """Rotated vectors, f32 [..., D]: scale times centroid."""
    return values_of(unpack(encoded.codes)) * encoded.scale.to(torch.float32)[..., None]

"""The block formats of GGUF value by value, as their description has them: slow, and independent of any library."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as Type


def _half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def _q4_0(block: bytes) -> list[float]:
    d, codes = _half(block, 0), block[2:]
    return [d * ((code & 15) - 8) for code in codes] + [d * ((code >> 4) - 8) for code in codes]


def _q4_1(block: bytes) -> list[float]:
    d, m, codes = _half(block, 0), _half(block, 2), block[4:]
    return [d * (code & 15) + m for code in codes] + [d * (code >> 4) + m for code in codes]


def _q8_0(block: bytes) -> list[float]:
    d = _half(block, 0)
    return [d * code for code in struct.unpack_from("<32b", block, 2)]


def _scale_and_minimum(packed: bytes, group: int) -> tuple[int, int]:
    """Six bits each of eight groups in twelve bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return (low & 15) | (packed[group - 4] >> 6) << 4, (low >> 4) | (packed[group] >> 6) << 4


def _q4_k(block: bytes) -> list[float]:
    d, d_min, scales, codes = _half(block, 0), _half(block, 2), block[4:16], block[16:]
    values = []
    for group in range(8):
        scale, minimum = _scale_and_minimum(scales, group)
        for code in codes[group // 2 * 32 : group // 2 * 32 + 32]:
            values.append(d * scale * (code >> 4 if group % 2 else code & 15) - d_min * minimum)
    return values


def _q5_k(block: bytes) -> list[float]:
    d, d_min, scales, high, codes = _half(block, 0), _half(block, 2), block[4:16], block[16:48], block[48:]
    values = []
    for group in range(8):
        scale, minimum = _scale_and_minimum(scales, group)
        for place, code in enumerate(codes[group // 2 * 32 : group // 2 * 32 + 32]):
            low = code >> 4 if group % 2 else code & 15
            values.append(d * scale * (low + 16 * (high[place] >> group & 1)) - d_min * minimum)
    return values


def _q6_k(block: bytes) -> list[float]:
    low, high, scales, d = block[:128], block[128:192], struct.unpack_from("<16b", block, 192), _half(block, 208)
    values = [0.0] * 256
    for half in range(2):
        for place in range(32):
            bits = high[32 * half + place]
            for part in range(4):
                code = low[64 * half + 32 * (part % 2) + place]
                code = (code >> 4 if part > 1 else code & 15) | (bits >> 2 * part & 3) << 4
                scale = scales[8 * half + 2 * part + place // 16]
                values[128 * half + 32 * part + place] = d * scale * (code - 32)
    return values


def _nvfp4(block: bytes) -> list[float]:
    values = []
    for group in range(4):
        scale = _e4m3(block[group])
        codes = block[4 + 8 * group : 12 + 8 * group]
        values += [scale * _E2M1[code & 15] for code in codes] + [scale * _E2M1[code >> 4] for code in codes]
    return values


def _e4m3(code: int) -> float:
    if code in (0, 0x7F):
        return 0.0
    exponent, mantissa = code >> 3 & 15, code & 7
    return mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
# Of each format: bytes of a block, where its float16 scales are, and what it means.
FORMATS: dict[Type, tuple[int, tuple[int, ...], Callable[[bytes], list[float]]]] = {
    Type.Q4_0: (18, (0,), _q4_0),
    Type.Q4_1: (20, (0, 2), _q4_1),
    Type.Q8_0: (34, (0,), _q8_0),
    Type.Q4_K: (144, (0, 2), _q4_k),
    Type.Q5_K: (176, (0, 2), _q5_k),
    Type.Q6_K: (210, (208,), _q6_k),
    Type.NVFP4: (36, (), _nvfp4),
}


def made(kind: Type, rows: int, blocks: int) -> np.ndarray:
    """uint8 [rows, bytes]: every code by chance, scales between -1 and 1."""
    size, halves, _ = FORMATS[kind]
    chance = np.random.default_rng(5)
    data = chance.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for at in halves:
        scales = chance.uniform(-1, 1, rows * blocks).astype("<f2")
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == Type.NVFP4:
        data[:, :4] &= 0x7F  # scales have no sign
    return data.reshape(rows, -1)


def meaning(kind: Type, data: np.ndarray) -> np.ndarray:
    """float64 [rows, values]"""
    size, _, decode = FORMATS[kind]
    rows = [[decode(bytes(row[at : at + size])) for at in range(0, len(row), size)] for row in data]
    return np.array(rows).reshape(len(data), -1)

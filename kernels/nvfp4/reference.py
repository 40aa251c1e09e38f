"""NVFP4 in plain PyTorch: quantise, dequantise, and the two ways to multiply. README.md has the mathematics."""

from __future__ import annotations

from typing import Literal

import torch

from kernels.nvfp4.format import (
    E2M1_MAX,
    E4M3_MAX,
    GROUP,
    LARGEST,
    Nvfp4Matrix,
    decode_e2m1,
    encode_e2m1,
    pack_nibbles,
    unpack_nibbles,
)

SMALLEST_SCALE = 2.0**-9


def quantize(
    weight: torch.Tensor, *, method: Literal["amax", "mse"] = "amax", input_multiplier: float | None = None
) -> Nvfp4Matrix:
    """Quantise [N, K]: one multiplier for the matrix (amax / 2688), a scale for each 16 values, nearest codes.

    `mse` tries, for each group, the scale from amax and the e4m3 values below and above it, and keeps the one with
    the least
    squared error. It costs some twelve times the work and lowers the error of Gaussian weights by about a tenth.
    """
    rows, columns = weight.shape
    if columns % GROUP:
        raise ValueError(f"{columns} columns are not a multiple of {GROUP}; pad the matrix")
    w = weight.to(torch.float32)
    amax = float(w.abs().max()) if w.numel() else 0.0
    multiplier = max(amax, 1e-30) / LARGEST
    groups = (w / multiplier).view(rows, columns // GROUP, GROUP)
    scale = (groups.abs().amax(-1) / E2M1_MAX).clamp(SMALLEST_SCALE, E4M3_MAX).to(torch.float8_e4m3fn)
    if method == "mse":
        scale = _search_scale(groups, scale)
    codes = encode_e2m1(groups / scale.to(torch.float32)[..., None]).view(rows, columns)
    return Nvfp4Matrix(
        pack_nibbles(codes),
        scale,
        torch.full((rows,), multiplier, dtype=torch.float32, device=w.device),
        input_multiplier,
    )


def _search_scale(groups: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    best_scale, best_error = start, torch.full(start.shape, float("inf"), device=groups.device)
    # e4m3 values of one sign are ordered by their bytes. Seven steps are a factor of about two.
    for step in range(-7, 4):
        byte = (start.view(torch.uint8).to(torch.int16) + step).clamp(1, 0x7E).to(torch.uint8)
        scale = byte.view(torch.float8_e4m3fn).to(torch.float32)[..., None]
        error = (decode_e2m1(encode_e2m1(groups / scale)) * scale - groups).square().sum(-1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, byte, best_scale.view(torch.uint8)).view(torch.float8_e4m3fn)
    return best_scale


def unscaled(matrix: Nvfp4Matrix, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """code x scale [N, K], without the multiplier. Exact in bfloat16, float16 and wider: at most six significant
    bits."""
    values = decode_e2m1(unpack_nibbles(matrix.codes), dtype)
    groups = values.view(values.shape[0], -1, GROUP) * matrix.scales.to(dtype)[..., None]
    return groups.view(values.shape)


def dequantize(matrix: Nvfp4Matrix, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (unscaled(matrix) * matrix.multiplier[:, None]).to(dtype)


def linear(x: torch.Tensor, matrix: Nvfp4Matrix) -> torch.Tensor:
    """W4A16: x [M, K] times the matrix, [M, N] in x's dtype; float32 sums, the multiplier afterwards."""
    return ((x.to(torch.float32) @ unscaled(matrix).T) * matrix.multiplier).to(x.dtype)


def quantize_activation(x: torch.Tensor, input_multiplier: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [M, K / 2] and e4m3 scales [M, K / 16] of activations; nothing depends on another row."""
    rows, columns = x.shape
    groups = x.to(torch.float32).view(rows, columns // GROUP, GROUP)
    scale = (groups.abs().amax(-1) / (E2M1_MAX * input_multiplier)).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    divisor = scale.to(torch.float32)[..., None] * input_multiplier
    codes = torch.where(divisor > 0, encode_e2m1(groups / divisor.where(divisor > 0, torch.ones_like(divisor))), 0)
    return pack_nibbles(codes.to(torch.uint8).view(rows, columns)), scale


def linear_w4a4(x: torch.Tensor, matrix: Nvfp4Matrix) -> torch.Tensor:
    """W4A4 as Blackwell computes it, up to the order of the sums: both operands are exact in bfloat16, sums in
    float32."""
    if matrix.input_multiplier is None:
        raise ValueError("this matrix is weight-only: it has no multiplier for the activations")
    codes, scales = quantize_activation(x, matrix.input_multiplier)
    ones = torch.ones(x.shape[0], dtype=torch.float32, device=x.device)
    a = unscaled(Nvfp4Matrix(codes, scales, ones))
    product = a.to(torch.float32) @ unscaled(matrix).T
    return (product * (matrix.multiplier * matrix.input_multiplier)).to(x.dtype)

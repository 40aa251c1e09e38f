"""Activations rounded as a narrow format would hold them, and FP8 matrices from floats; the formats are in kernels."""

from __future__ import annotations

import torch

from inference_grpc.model.formats import Fp8
from inference_grpc.model.saturation import ACTIVATIONS, Saturated
from kernels.fp8.reference import MAX, quantize
from kernels.fp8.reference import quantize_activation as quantize_activation_fp8
from kernels.nvfp4.format import LARGEST, Nvfp4Matrix
from kernels.nvfp4.reference import quantize_activation, unscaled


def to_e4m3(values: torch.Tensor, saturated: Saturated) -> torch.Tensor:
    """Saturating at +-448, which is counted: the bare conversion would give NaN."""
    saturated.see(values, MAX)
    return values.clamp(-MAX, MAX).to(torch.float8_e4m3fn)


def quantize_fp8(values: torch.Tensor) -> Fp8:
    """[N, K] float32, one scale for each row."""
    made = quantize(values, by="row")
    return Fp8(made.values, made.multiplier)


def round_activations_fp8(x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """By a static scale, or each row by its own maximum."""
    if scale is not None:
        return to_e4m3(x / scale, ACTIVATIONS).float() * scale
    values, row_scale = quantize_activation_fp8(x)
    return values.float() * row_scale[:, None]


def round_activations_fp8_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """Each `group` values of a row by their own maximum."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % group))
    rounded = round_activations_fp8(padded.reshape(-1, group), None)
    return rounded.view(padded.shape)[:, : x.shape[-1]]


def round_activations_nvfp4(x: torch.Tensor, multiplier: float | None) -> torch.Tensor:
    """By the static multiplier of the layer's input, or each row by its own maximum."""
    unit = multiplier or x.abs().amax(-1, keepdim=True).div(LARGEST).clamp(min=1e-30)
    if multiplier is not None:
        ACTIVATIONS.see(x, multiplier * LARGEST)
    codes, scales = quantize_activation(x / unit, 1.0)
    return unscaled(Nvfp4Matrix(codes, scales, torch.ones(x.shape[0]))) * unit

"""x wᵀ for FP8 weights and activations: our decode kernel for few rows, the library's for many."""

from __future__ import annotations

import torch

from kernels.fp8.pack import PackedFp8
from kernels.fp8.reference import Fp8Matrix, quantize_activation
from kernels.native.gemm import MAX_TOKENS, launch, usual_split


def linear(x: torch.Tensor, matrix: PackedFp8) -> torch.Tensor:
    """reference.linear on sm_90 for up to MAX_TOKENS rows: the structure of the NVFP4 kernel, so that the two compare
    fairly."""
    rows = x.shape[0]
    if rows > MAX_TOKENS:
        raise ValueError(f"the packed form takes up to {MAX_TOKENS} rows; give the unpacked matrix to `library`")
    values, multiplier = quantize_activation(x)
    splits, k_warps = usual_split("fp8", matrix.rows, matrix.columns, rows)
    y = torch.empty(splits, rows, matrix.rows, device=x.device)
    launch(
        "fp8",
        values.to(torch.float16),  # exact
        matrix.values,
        None,
        matrix.multiplier,
        y,
        rows=matrix.rows,
        columns=matrix.columns,
        splits=splits,
        k_warps=k_warps,
    )
    return (y.sum(0) * multiplier[:, None]).to(x.dtype)


def library(x: torch.Tensor, matrix: Fp8Matrix) -> torch.Tensor:
    """reference.linear through torch's row-wise scaled product (cuBLASLt or CUTLASS)."""
    if matrix.multiplier.ndim != 1:
        raise ValueError("the library form takes a multiplier a row; convert block scales first")
    values, multiplier = quantize_activation(x)
    out = torch._scaled_mm(
        values,
        matrix.values.T,
        scale_a=multiplier[:, None],
        scale_b=matrix.multiplier[None, :],
        out_dtype=torch.bfloat16,
    )
    return out.to(x.dtype)

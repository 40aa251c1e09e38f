"""x wᵀ for NVFP4 weights with 16-bit activations: the decode kernel, the prefill path, and the portable form."""

from __future__ import annotations

import functools

import torch

from kernels.native.gemm import MAX_TOKENS, WIDE, DeferredNorm, Output, dequantize, launch, usual_split
from kernels.nvfp4.format import Nvfp4Matrix
from kernels.nvfp4.pack import PackedNvfp4


def stream(
    x: torch.Tensor,
    matrix: PackedNvfp4,
    *,
    output: Output = "bfloat16",
    splits: int | None = None,
    k_warps: int | None = None,
    norm: DeferredNorm | None = None,
    overlap: bool = False,
) -> torch.Tensor:
    """x [M, K] bf16 times packed weights, on sm_90: the decode kernels to MAX_TOKENS rows, else dequantise once and
    multiply.

    `float` returns the partial sums [splits, M, N], to be added in order by the next kernel; the other outputs need
    splits 1, or are summed here. With `splits` and `k_warps` fixed, a row's bits do not depend on M.
    """
    rows = x.shape[0]
    if rows > MAX_TOKENS:
        if norm is not None:
            raise ValueError("a deferred norm is for the decode kernel; normalise the rows of a prefill first")
        return _prefill(x, matrix, output)
    usual = usual_split("nvfp4", matrix.rows, matrix.columns, rows)
    splits, k_warps = splits or usual[0], usual[1] if k_warps is None else k_warps
    if output == "silu_mul" and not matrix.pairs_interleaved:
        raise ValueError("silu_mul needs weights packed with pairs=True")
    direct = output == "float" or (splits == 1 and k_warps != WIDE)
    if not direct and output == "silu_mul":
        # A sum over parts comes before SiLU, so the parts are added first.
        parts = stream(x, matrix, output="float", splits=splits, k_warps=k_warps, norm=norm, overlap=overlap)
        return _silu_mul(parts.sum(0)).to(x.dtype)
    width = matrix.rows // 2 if output == "silu_mul" else matrix.rows
    if output == "float" or not direct:
        y = torch.empty(splits, rows, matrix.rows, dtype=torch.float32, device=x.device)
    else:
        y = torch.empty(rows, width, dtype=torch.bfloat16, device=x.device)
    launch(
        "nvfp4",
        x,
        matrix.codes,
        matrix.scales,
        matrix.multiplier,
        y,
        rows=matrix.rows,
        columns=matrix.columns,
        splits=splits,
        output=output if direct else "float",
        norm=norm,
        k_warps=k_warps,
        overlap=overlap,
    )
    return y if direct else y.sum(0).to(x.dtype)


def _silu_mul(y: torch.Tensor) -> torch.Tensor:
    pairs = y.view(y.shape[0], -1, 2, 8)
    gate, up = pairs[:, :, 0], pairs[:, :, 1]
    return torch.mul(torch.nn.functional.silu(gate), up).reshape(y.shape[0], -1)


@functools.cache
def _workspace(values: int, device: torch.device) -> torch.Tensor:
    # One buffer for all matrices of that size: prefill products run one after another on one stream.
    return torch.empty(values, dtype=torch.bfloat16, device=device)


def _prefill(x: torch.Tensor, matrix: PackedNvfp4, output: Output) -> torch.Tensor:
    """Dequantise the matrix once, multiply by the library, then scale: the product is rounded to bfloat16 before and
    after."""
    from kernels.nvfp4.device import scale_kernel

    w = _workspace(matrix.rows * matrix.columns, x.device).view(matrix.rows, matrix.columns)
    dequantize(matrix.codes, matrix.scales, w)
    product = x @ w.T
    if output == "float":
        return (product.to(torch.float32) * matrix.multiplier)[None]
    pairs = output == "silu_mul"
    y = torch.empty(x.shape[0], matrix.rows // 2 if pairs else matrix.rows, dtype=x.dtype, device=x.device)
    block = 1024
    scale_kernel[(x.shape[0], -(-y.shape[1] // block))](
        product, matrix.multiplier, y, matrix.rows, PAIRS=pairs, BLOCK=block
    )
    return y


def triton_form(x: torch.Tensor, matrix: Nvfp4Matrix, *, wide: bool = False) -> torch.Tensor:
    """reference.linear from the canonical layout, on any GPU that Triton knows. `wide` multiplies in float32."""
    import triton.language as tl

    from kernels.nvfp4.device import linear_kernel

    rows, columns = matrix.shape
    block_k = next((b for b in (256, 128, 64, 32, 16) if columns % b == 0), None)
    if block_k is None:
        raise ValueError(f"{columns} columns are not a multiple of 16; pad the matrix")
    y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    if x.shape[0]:
        block_m = 16 if x.shape[0] <= 16 else 32 if x.shape[0] <= 32 else 64
        grid = (-(-rows // 64), -(-x.shape[0] // block_m))
        linear_kernel[grid](
            x,
            matrix.codes,
            matrix.scales,
            matrix.multiplier,
            y,
            x.shape[0],
            rows,
            columns,
            BM=block_m,
            BN=64,
            BK=block_k,
            DOT=tl.float32 if wide else tl.bfloat16,
            num_warps=4,
            num_stages=3,
        )
    return y

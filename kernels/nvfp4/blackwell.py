"""W4A4 on Blackwell: block-scaled FP4 products through Triton. Compiled ahead of time by the tests; never run by us."""

from __future__ import annotations

from typing import Any

import torch

from kernels.nvfp4.format import Nvfp4Matrix

BLOCK_N, BLOCK_M, BLOCK_K = 128, 16, 256
# sm_120 has 99 KiB of shared memory for a block, sm_100 227 KiB.
SHARED_LIMITS = {100: 227 * 1024, 120: 99 * 1024}


def linear_w4a4(x: torch.Tensor, matrix: Nvfp4Matrix) -> torch.Tensor:
    """reference.linear_w4a4 up to the order of the sums: x [M, K] is quantised by row and multiplied in FP4."""
    from kernels.nvfp4.device import linear_w4a4_kernel
    from kernels.nvfp4.quantize import quantize_activation

    if matrix.input_multiplier is None:
        raise ValueError("this matrix is weight-only: it has no multiplier for the activations")
    rows, columns = matrix.shape
    if columns % BLOCK_K:
        raise ValueError(f"W4A4 takes columns in multiples of {BLOCK_K}, not {columns}; pad the matrix")
    codes, scales = quantize_activation(x, matrix.input_multiplier)
    y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    grid = (-(-rows // BLOCK_N), -(-x.shape[0] // BLOCK_M))
    linear_w4a4_kernel[grid](
        codes,
        scales,
        matrix.codes,
        matrix.scales,
        matrix.multiplier,
        y,
        matrix.input_multiplier,
        x.shape[0],
        rows,
        columns,
        BM=BLOCK_M,
        BN=BLOCK_N,
        BK=BLOCK_K,
        num_warps=4,
        num_stages=2,
    )
    return y


def compile_for(capability: int) -> Any:  # triton's CompiledKernel has no types
    """Compile the product for sm_<capability> without a GPU; `.asm["ptx"]` and `.metadata.shared` are what CI looks
    at."""
    import triton
    from triton.backends.compiler import GPUTarget

    from kernels.nvfp4.device import linear_w4a4_kernel

    names = [
        "x_codes_ptr",
        "x_scales_ptr",
        "w_codes_ptr",
        "w_scales_ptr",
        "multiplier_ptr",
        "y_ptr",
        "input_multiplier",
        "M",
        "N",
        "K",
    ]
    types = ["*u8", "*fp8e4nv", "*u8", "*fp8e4nv", "*fp32", "*bf16", "fp32", "i32", "i32", "i32"]
    constants = {"BM": BLOCK_M, "BN": BLOCK_N, "BK": BLOCK_K}
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    # Pointers and sizes are multiples of sixteen, as at run time.
    attributes = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(types) if t.startswith("*") or names[i] in "NK"}
    source = triton.compiler.ASTSource(linear_w4a4_kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "num_stages": 2})

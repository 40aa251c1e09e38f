"""Python face of stream_gemm.cu: the decode GEMM for NVFP4 and FP8 weights that are already packed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal

import torch

from kernels import native

Output = Literal["float", "silu_mul", "bfloat16"]
_OUTPUTS: dict[str, int] = {"float": 0, "silu_mul": 1, "bfloat16": 2}
# Code, rows that a warp works on at a time, bytes of one stage of a warp's ring.
_FORMATS = {"nvfp4": (0, 64, 2304), "fp8": (1, 32, 2048)}
MAX_TOKENS = 32
_WARPS = 16
_STAGES = 3
_SHARED_BYTES = 232_448  # what one block may use on sm_90


@dataclass(frozen=True)
class DeferredNorm:
    """Sums of squares of the rows before their norm weight; the kernel divides each row by its root mean square."""

    square_sums: torch.Tensor  # f32 [M, 4], in four parts
    width: int


def _slice_bytes(format_: str, columns: int, tokens: int, splits: int) -> int:
    _, rows, stage = _FORMATS[format_]
    tiles = -(-(columns // 64) // splits)
    token_tiles = 1 if tokens <= 8 else 2 if tokens <= 16 else 4
    return _WARPS * (_STAGES * stage + 8 * (rows + 4) * 4) + tiles * 64 * 8 * token_tiles * 2


def least_splits(format_: str, columns: int, tokens: int) -> int:
    """The fewest parts that K must be cut into, for the rows of x to fit beside the ring in shared memory."""
    splits = 1
    while _slice_bytes(format_, columns, tokens, splits) > _SHARED_BYTES:
        splits += 1
    return splits


def launch(
    format_: str,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    multiplier: torch.Tensor,
    y: torch.Tensor,
    *,
    rows: int,
    columns: int,
    splits: int,
    output: Output,
    norm: DeferredNorm | None = None,
    overlap: bool = False,
    k_warps: int | None = None,
    blocks: int | None = None,
) -> None:
    """y = x wᵀ, x in bfloat16 for nvfp4 and in float16 for fp8.

    `overlap` lets the launch begin before the kernel in front of it has ended; every kernel between two such launches
    must itself wait for its predecessor (they all do here)."""
    if k_warps is None:
        k_warps = 16 if x.shape[0] <= 8 else 8 if x.shape[0] <= 16 else 4
    if blocks is None:
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        blocks = max(processors // splits, 1) * splits
    status = native.load("stream_gemm").stream_gemm_launch(
        _FORMATS[format_][0],
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(codes.data_ptr()),
        ctypes.c_void_p(scales.data_ptr() if scales is not None else 0),
        ctypes.c_void_p(multiplier.data_ptr()),
        ctypes.c_void_p(y.data_ptr()),
        ctypes.c_void_p(norm.square_sums.data_ptr() if norm else 0),
        ctypes.c_float(1.0 / norm.width if norm else 0.0),
        x.shape[0],
        rows,
        columns,
        splits,
        k_warps,
        _OUTPUTS[output],
        blocks,
        int(overlap),
        ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
    )
    if status:
        raise RuntimeError(
            f"stream_gemm refused {format_} [{rows}, {columns}] for {x.shape[0]} rows in {splits} parts: code {status}"
        )


def dequantize(codes: torch.Tensor, scales: torch.Tensor, w: torch.Tensor) -> None:
    """Packed NVFP4 weights to bfloat16 code x scale in `w` [N, K]: exact, without the multipliers."""
    status = native.load("stream_gemm").dequantize_launch(
        ctypes.c_void_p(codes.data_ptr()),
        ctypes.c_void_p(scales.data_ptr()),
        ctypes.c_void_p(w.data_ptr()),
        w.shape[0],
        w.shape[1],
        ctypes.c_void_p(torch.cuda.current_stream(w.device).cuda_stream),
    )
    if status:
        raise RuntimeError(f"dequantising [{w.shape[0]}, {w.shape[1]}] failed: CUDA error {status}")

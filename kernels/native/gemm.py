"""Python face of stream_gemm.cu and wide_gemm.cu: the decode GEMM for NVFP4 and FP8 weights that are already packed."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch

from kernels import native

Output = Literal["float", "silu_mul", "bfloat16"]
_OUTPUTS: dict[str, int] = {"float": 0, "silu_mul": 1, "bfloat16": 2}
# Code, rows that a warp works on at a time, bytes of one stage of a warp's ring.
_FORMATS = {"nvfp4": (0, 48, 1728), "fp8": (1, 32, 2048)}
MAX_TOKENS = 128
STREAM_TOKENS = 32  # that stream_gemm takes; it is the faster one to FEW
FEW = 8
WIDE = 0  # in the place of `k_warps`: wide_gemm, whose warps do not share K
MOST_PARTS = 8
_WARPS = 16
_STAGES = 3
_SHARED_BYTES = 232_448  # what one block may use on sm_90
_BLOCK_ROWS, _STAGE_K = 256, 256  # of wide_gemm
_PROCESSORS = 132  # of an H100 or H200 SXM; how K is divided must not depend on which one of them it is


@dataclass(frozen=True)
class DeferredNorm:
    """Sums of squares of the rows before their norm weight; the kernel divides each row by its root mean square."""

    square_sums: torch.Tensor  # f32 [M, 4], in four parts
    width: int


def _slice_bytes(format_: str, columns: int, tokens: int, splits: int) -> int:
    _, rows, stage = _FORMATS[format_]
    tiles = -(-(columns // 64) // splits)
    token_tiles = 1 if tokens <= 8 else 2 if tokens <= 16 else 4
    return _WARPS * (_STAGES * stage + 8 * (rows + 4) * 4) + 8 * token_tiles * (tiles * 64 * 2 + 16)


def least_splits(format_: str, columns: int, tokens: int) -> int:
    """The fewest parts that stream_gemm must cut K into, for the rows of x to fit beside the ring in shared memory."""
    splits = 1
    while _slice_bytes(format_, columns, min(tokens, STREAM_TOKENS), splits) > _SHARED_BYTES:
        splits += 1
    return splits


@functools.cache
def _shares(rows: int, columns: int, blocks: int) -> tuple[int, int]:
    """How many blocks of wide_gemm share one set of rows at most, and the most stages of K that one block has."""
    stages_k, tiles = columns // _STAGE_K, -(-rows // _BLOCK_ROWS)
    total = tiles * stages_k
    ends = [total * (block + 1) // blocks for block in range(blocks)]
    most = max(end - start for start, end in zip([0, *ends], ends, strict=False))
    owners = [((unit + 1) * blocks - 1) // total for unit in range(0, total, stages_k)]
    last = [((unit + stages_k) * blocks - 1) // total for unit in range(0, total, stages_k)]
    return max(end - start + 1 for start, end in zip(owners, last, strict=True)), most


@functools.cache
def blocks_for(rows: int, columns: int, parts: int) -> int:
    """The most blocks of wide_gemm for which at most `parts` share a set of rows; with one part each block has whole
    sets."""
    if parts == 1:
        return min(-(-rows // _BLOCK_ROWS), _PROCESSORS)
    units = -(-rows // _BLOCK_ROWS) * (columns // _STAGE_K)
    return max(n for n in range(1, min(_PROCESSORS, units) + 1) if _shares(rows, columns, n)[0] <= parts)


@functools.cache
def usual_parts(rows: int, columns: int) -> int:
    """The fewest parts for wide_gemm whose longest share is within an eighth of an even one."""
    tiles, stages_k = -(-rows // _BLOCK_ROWS), columns // _STAGE_K
    even = tiles * stages_k / _PROCESSORS
    for parts in range(1, MOST_PARTS):
        blocks = blocks_for(rows, columns, parts)
        most = -(-tiles // blocks) * stages_k if parts == 1 else _shares(rows, columns, blocks)[1]
        if most <= 1.125 * even:
            return parts
    return MOST_PARTS


def usual_split(format_: str, rows: int, columns: int, tokens: int, *, invariant: bool = False) -> tuple[int, int]:
    """Parts, and warps along K or WIDE, for that many rows of x. `invariant`: the same for any number of rows."""
    if columns % _STAGE_K == 0 and (invariant or tokens > FEW):
        return usual_parts(rows, columns), WIDE
    tokens = STREAM_TOKENS if invariant else tokens
    splits, along = least_splits(format_, columns, tokens), 16 if tokens <= 8 else 8 if tokens <= 16 else 4
    while along > 4 and columns // 64 // splits < along:
        along //= 2
    return splits, along


class _Sizes(TypedDict):
    rows: int
    columns: int
    splits: int
    k_warps: int


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
    k_warps: int,
    output: Output = "float",
    norm: DeferredNorm | None = None,
    overlap: bool = False,
) -> None:
    """y = x wᵀ, x in bfloat16 for nvfp4 and in float16 for fp8; as `float` the parts [splits, M, rows] of the sum, to
    be added in order. `k_warps`: how many warps of a block divide K, or WIDE, which has no other output.

    With splits and `k_warps` fixed, a row's bits do not depend on M. `overlap` lets the launch begin before the kernel
    in front of it has ended; every kernel between two such launches must itself wait for its predecessor (they all do
    here). ValueError for shapes that the kernels do not take."""
    tile = _STAGE_K if k_warps == WIDE else 64
    if rows % 16 or columns % tile or x.shape[1] != columns or not x.is_contiguous():
        raise ValueError(
            f"x {tuple(x.shape)} times [{rows}, {columns}]: its rows must be contiguous and as long as those of the "
            f"matrix, which must have a multiple of 16 rows and of {tile} columns"
        )
    if k_warps != WIDE and x.shape[0] > STREAM_TOKENS:
        for at in range(0, x.shape[0], STREAM_TOKENS):
            few = slice(at, at + STREAM_TOKENS)
            own = DeferredNorm(norm.square_sums[few], norm.width) if norm else None
            part = torch.empty(splits, len(x[few]), rows, device=x.device)
            sizes: _Sizes = {"rows": rows, "columns": columns, "splits": splits, "k_warps": k_warps}
            launch(format_, x[few], codes, scales, multiplier, part, **sizes, norm=own, overlap=overlap)
            y[:, few] = part
        return
    stream = ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream)
    tensors = [x, codes, scales, multiplier, y, norm.square_sums if norm else None]
    pointers = [ctypes.c_void_p(0 if tensor is None else tensor.data_ptr()) for tensor in tensors]
    scale = ctypes.c_float(1.0 / norm.width if norm else 0.0)
    code = _FORMATS[format_][0]
    numbers: tuple[int, ...]
    if k_warps == WIDE:
        blocks = blocks_for(rows, columns, splits)
        numbers = (x.shape[0], rows, columns, splits, blocks, int(overlap))
        status = native.load("wide_gemm").wide_gemm_launch(code, *pointers, scale, *numbers, stream)
    else:
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        blocks = max(processors // splits, 1) * splits
        numbers = (x.shape[0], rows, columns, splits, k_warps, _OUTPUTS[output], blocks, int(overlap))
        status = native.load("stream_gemm").stream_gemm_launch(code, *pointers, scale, *numbers, stream)
    if status:
        name = "wide_gemm" if k_warps == WIDE else "stream_gemm"
        raise RuntimeError(
            f"{name} refused {format_} [{rows}, {columns}] for {x.shape[0]} rows in {splits} parts: code {status}"
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

"""Attention of rotated queries over pages, as partial sums a run: through CUDA C++ where it fits, else through Triton.

The CUDA form reads both stages, the Triton form FP8 or bfloat16 pages only.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from kernels import native
from kernels.paged_attention.cache import PagePools
from kernels.paged_attention.runs import Runs
from kernels.paged_attention.stage import Staging
from kernels.turboquant.reference import Encoded

NATIVE_PAGE, NATIVE_SIZE, NATIVE_GROUP = 64, 256, 8


def is_native(keys: torch.Tensor, heads: int) -> bool:
    """Whether the CUDA form takes pages of this kind, for that many query heads."""
    if not keys.is_cuda or keys.dtype != torch.float8_e4m3fn or torch.cuda.get_device_capability(keys.device) != (9, 0):
        return False
    return keys.shape[2:] == (NATIVE_PAGE, NATIVE_SIZE) and heads // keys.shape[1] <= NATIVE_GROUP


def partial_sums(heads: int, keys: torch.Tensor, rows: int, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for a run's sums [.., 16 query heads, D], and for maxima and totals [.., 32]."""
    cells = rows * keys.shape[1] * splits
    if heads // keys.shape[1] > 16:
        raise ValueError(f"a KV head may serve at most 16 query heads, not {heads // keys.shape[1]}")
    return (
        torch.empty(cells, 16, keys.shape[3], device=keys.device),
        torch.empty(cells, 32, device=keys.device),
    )


def attend_pages(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    fp8_table: torch.Tensor,
    positions: torch.Tensor,
    acc: torch.Tensor,
    most_total: torch.Tensor,
    *,
    heads: int,
    rows: int,
    runs: Runs,
    scale: float,
    three_bit: tuple[Encoded, Encoded, torch.Tensor, Staging] | None = None,
    wide: bool = False,
    overlap: bool = False,
) -> None:
    """One launch for q float32 [B * rows, heads, D]; row t of sequence b stands at positions[b] + t. `three_bit`: the
    pools of the other stage, their block table and the rule; without it every page is read from `keys` and `values`.
    `wide` multiplies in float32, for Triton's interpreter."""
    pages = fp8_table.shape[1]
    splits, batch = runs.count(pages), q.shape[0] // rows
    if not wide and is_native(keys, heads):
        pools: list[torch.Tensor | None] = [keys, values, *[None] * 4]
        table, anchors, recent = fp8_table, 0, 1 << 30
        if three_bit is not None:
            k, v, table, staging = three_bit
            pools[2:] = [k.codes, k.scale, v.codes, v.scale]
            anchors, recent = staging.anchors, staging.recent
        status = native.load("staged_attention").staged_attention_launch(
            ctypes.c_void_p(q.data_ptr()),
            pool_pointers(pools),
            ctypes.c_void_p(fp8_table.data_ptr()),
            ctypes.c_void_p(table.data_ptr()),
            ctypes.c_void_p(positions.data_ptr()),
            ctypes.c_void_p(acc.data_ptr()),
            ctypes.c_void_p(most_total.data_ptr()),
            ctypes.c_float(scale),
            batch,
            rows,
            pages,
            anchors,
            recent,
            splits,
            keys.shape[1],
            heads // keys.shape[1],
            runs.run_pages,
            runs.level_runs,
            runs.levels,
            runs.recent_runs(pages),
            int(overlap),
            ctypes.c_void_p(torch.cuda.current_stream(q.device).cuda_stream),
        )
        if status:
            raise RuntimeError(f"staged_attention failed for {batch} sequences of {rows} rows: CUDA error {status}")
        return
    if three_bit is not None and three_bit[3].three_bit_pages(pages * keys.shape[2]):
        raise ValueError(
            f"three-bit pages are read by the CUDA form only: sm_90, FP8 pages of {NATIVE_PAGE} tokens, heads of "
            f"{NATIVE_SIZE}, at most {NATIVE_GROUP} query heads a KV head; take a staging rule that keeps all in FP8"
        )
    import triton.language as tl

    from kernels.paged_attention.device import attend_kernel

    start: dict[str, Any] = {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})
    attend_kernel[(q.shape[0], keys.shape[1], splits)](
        q,
        keys,
        values,
        fp8_table,
        positions,
        acc,
        most_total,
        rows,
        pages,
        splits,
        scale,
        KV_HEADS=keys.shape[1],
        GROUP=heads // keys.shape[1],
        SIZE=keys.shape[3],
        PAGE=keys.shape[2],
        DOT=tl.float32 if wide else tl.float16,
        STAGES=3,
        num_warps=4,
        RUN=runs.run_pages,
        LEVEL_RUNS=runs.level_runs,
        LEVELS=runs.levels,
        **start,
    )


def pool_pointers(pools: list[torch.Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(pools))(*[None if pool is None else pool.data_ptr() for pool in pools])


def demote_on_device(pools: PagePools, fp8_pages: torch.Tensor, three_bit_pages: torch.Tensor) -> None:
    """cache.demote in one launch; pages int64."""
    k, v = pools.three_bit_keys, pools.three_bit_values
    if len(fp8_pages) == 0:
        return
    status = native.load("staged_attention").demote_launch(
        pool_pointers([pools.keys, pools.values, k.codes, k.scale, v.codes, v.scale]),
        ctypes.c_void_p(fp8_pages.data_ptr()),
        ctypes.c_void_p(three_bit_pages.data_ptr()),
        len(fp8_pages),
        pools.keys.shape[1],
        ctypes.c_void_p(torch.cuda.current_stream(pools.keys.device).cuda_stream),
    )
    if status:
        raise RuntimeError(f"demoting {len(fp8_pages)} pages failed: CUDA error {status}")

"""The chunked form through Triton: prefill of sequences packed one after another.

Only the state passes from chunk to chunk: what a chunk needs of itself is computed for all chunks at once before, and
what its rows see of each other after.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.gated_delta_rule.reference import CHUNK
from kernels.gated_delta_rule.step import HEAD_SIZE
from kernels.ragged import Ragged


def gates(small: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.gates of rows [b | a], which may lie apart; float32 [T, H]."""
    from kernels.gated_delta_rule.device import gates_kernel

    rows, heads = len(small), len(a_log)
    g, beta = torch.empty(2, rows, heads, device=small.device)
    block = 1 << max(heads - 1, 1).bit_length()
    gates_kernel[(rows,)](small, small.stride(0), a_log, dt_bias, g, beta, H=heads, BLOCK=block, num_warps=1)
    return g, beta


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Ragged,
) -> torch.Tensor:
    """reference.chunked_ragged; float32 [T, H, V]. On a GPU products have bfloat16 factors and float32 sums, the state
    is float32, T is solved for in tf32; in the interpreter all is float32.

    Rows of q, k and v may lie apart, each is contiguous in itself. Start every call at a multiple of 64 in its
    sequence: then states at such positions do not depend on how a prompt was cut. ValueError for heads on a GPU that
    are not [128, 128]: nothing else is proved.
    """
    import triton.language as tl

    from kernels.gated_delta_rule.device import chunk_output_kernel, chunk_solve_kernel, chunk_state_kernel

    tokens, heads, size_v = v.shape
    key_heads, size_k = q.shape[1:]
    if v.is_cuda and (size_k, size_v) != (HEAD_SIZE, HEAD_SIZE):
        raise ValueError(f"the chunked kernels take heads of [{HEAD_SIZE}, {HEAD_SIZE}], not [{size_k}, {size_v}]")
    dtype = torch.bfloat16 if v.is_cuda else torch.float32
    o = torch.empty(tokens, heads, size_v, device=v.device)
    if not tokens:
        return o
    new = torch.empty(tokens, heads, size_v, dtype=dtype, device=v.device)
    w = torch.empty(tokens, heads, size_k, dtype=dtype, device=v.device)
    shape: dict[str, Any] = {"HK": key_heads, "H": heads, "K": size_k, "V": size_v, "C": CHUNK}
    shape |= {"DOT": tl.bfloat16, "PRECISION": "tf32"} if v.is_cuda else {"DOT": tl.float32, "PRECISION": "ieee"}
    grid = (len(rows.blocks), heads)
    chunk_solve_kernel[grid](
        k, v, k.stride(0), v.stride(0), g, beta, rows.blocks, new, w, num_warps=4, num_stages=1, **shape
    )
    block = min(size_v, 64)
    chunk_state_kernel[(len(rows.slots), heads, size_v // block)](
        q,
        k,
        q.stride(0),
        k.stride(0),
        g,
        new,
        w,
        state,
        rows.starts,
        rows.slots,
        rows.stops,
        rows.first_stops,
        o,
        BV=block,
        STAGES=2,
        num_warps=4,
        **shape,
    )
    chunk_output_kernel[grid](
        q, k, q.stride(0), k.stride(0), g, beta, new, rows.blocks, o, num_warps=4, num_stages=1, **shape
    )
    return o

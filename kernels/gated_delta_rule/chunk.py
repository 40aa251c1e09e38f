"""The chunked form through Triton: prefill of sequences packed one after another.

Only the state passes from chunk to chunk: what a chunk needs of itself is computed for all chunks at once before, and
what its rows see of each other after.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from kernels.gated_delta_rule.reference import CHUNK
from kernels.gated_delta_rule.step import HEAD_SIZE


def chunk_table(starts: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """First row and end of each chunk of the packed sequences, int32 [chunks, 2]."""
    rows = [(row, min(row + CHUNK, end)) for begin, end in pairwise(starts) for row in range(begin, end, CHUNK)]
    return torch.tensor(rows, dtype=torch.int32).view(-1, 2).to(device, non_blocking=True)


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    starts: torch.Tensor,
    *,
    chunks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """reference.chunked_ragged; o float32. On a GPU products have bfloat16 factors and float32 sums, the state is
    float32, T is solved for in tf32; in the interpreter all is float32.

    Rows of q, k and v may lie apart, each is contiguous in itself. `chunks`: `chunk_table` of `starts`; without it the
    device is asked, which waits. Start every call at a multiple of 64 in its sequence: then states at such positions do
    not depend on how a prompt was cut. ValueError for heads on a GPU that are not [128, 128]: nothing else is proved.
    """
    import triton.language as tl

    from kernels.gated_delta_rule.device import chunk_output_kernel, chunk_solve_kernel, chunk_state_kernel

    tokens, heads, size_v = v.shape
    batch, key_heads, size_k = state.shape[0], q.shape[1], q.shape[2]
    if v.is_cuda and (size_k, size_v) != (HEAD_SIZE, HEAD_SIZE):
        raise ValueError(f"the chunked kernels take heads of [{HEAD_SIZE}, {HEAD_SIZE}], not [{size_k}, {size_v}]")
    dtype = torch.bfloat16 if v.is_cuda else torch.float32
    o = torch.empty(tokens, heads, size_v, device=v.device)
    last = torch.empty(state.shape, dtype=torch.float32, device=v.device)
    if chunks is None:
        chunks = chunk_table(starts.tolist(), v.device)
    if not batch:
        return o, last
    new = torch.empty(tokens, heads, size_v, dtype=dtype, device=v.device)
    w = torch.empty(tokens, heads, size_k, dtype=dtype, device=v.device)
    shape: dict[str, Any] = {"HK": key_heads, "H": heads, "K": size_k, "V": size_v, "C": CHUNK}
    shape |= {"DOT": tl.bfloat16, "PRECISION": "tf32"} if v.is_cuda else {"DOT": tl.float32, "PRECISION": "ieee"}
    grid = (len(chunks), heads)
    if len(chunks):
        chunk_solve_kernel[grid](
            k, v, k.stride(0), v.stride(0), g, beta, chunks, new, w, num_warps=4, num_stages=1, **shape
        )
    block = min(size_v, 64)
    chunk_state_kernel[(batch, heads, size_v // block)](
        q,
        k,
        q.stride(0),
        k.stride(0),
        g,
        new,
        w,
        state,
        starts,
        o,
        last,
        BV=block,
        STAGES=2,
        num_warps=4,
        **shape,
    )
    if len(chunks):
        chunk_output_kernel[grid](
            q, k, q.stride(0), k.stride(0), g, beta, new, chunks, o, num_warps=4, num_stages=1, **shape
        )
    return o, last

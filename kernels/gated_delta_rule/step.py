"""Python face of gdn_step.cu: one decode step of a layer between its projections, for sm_90."""

from __future__ import annotations

import ctypes

import torch

from kernels import native
from kernels.native.gemm import DeferredNorm

HEAD_SIZE = 128


def decode_step(
    mixed: torch.Tensor,
    state: torch.Tensor,
    state_in: torch.Tensor,
    state_out: torch.Tensor,
    conv: torch.Tensor,
    conv_slot: torch.Tensor,
    positions: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    key_heads: int,
    out: torch.Tensor | None = None,
    gates: torch.Tensor | None = None,
    norm: DeferredNorm | None = None,
    overlap: bool = False,
) -> torch.Tensor:
    """reference.decode_step on the device; `mixed` may be [parts, B, T, width], to be summed (a GEMM that was split
    over K). `gates` bf16 [B, T, b | a]: then `mixed` ends with z. `norm`: mixed and gates are of rows before their
    norm.

    With `overlap` all but `mixed`, `gates` and `norm` is read before the kernel in front has ended: nothing launched
    since the last kernel that wrote this state may still be running. Two stream_gemm launches in between are enough,
    since each fills the device.
    """
    parts, batch, tokens, width = mixed.shape if mixed.ndim == 4 else (1, *mixed.shape)
    heads = state.shape[1]
    if state.shape[2:] != (HEAD_SIZE, HEAD_SIZE) or state.dtype != torch.float32 or conv.dtype != torch.bfloat16:
        raise ValueError("the fused step takes a float32 state of [128, 128] per head and a bfloat16 ring of inputs")
    if width % 4:
        raise ValueError(f"rows of {width} inputs do not begin where four can be read at once")
    if conv.shape[1] < tokens + 3:
        raise ValueError(f"a ring of {conv.shape[1]} inputs cannot take {tokens} rows: it needs {tokens + 3}")
    if out is None:
        out = torch.empty(batch, tokens, heads * HEAD_SIZE, dtype=torch.bfloat16, device=mixed.device)
    tensors = [state, state_in, state_out, conv, conv_slot, positions, conv_weight, a_log, dt_bias, norm_weight, out]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    status = native.load("gdn_step").gdn_step_launch(
        ctypes.c_void_p(mixed.data_ptr()),
        int(mixed.dtype == torch.float32),
        ctypes.c_void_p(gates.data_ptr() if gates is not None else 0),
        *pointers,
        int(out.dtype == torch.float16),
        ctypes.c_void_p(norm.square_sums.data_ptr() if norm else 0),
        ctypes.c_float(1.0 / norm.width if norm else 0.0),
        batch,
        tokens,
        key_heads,
        heads,
        conv.shape[1],
        parts,
        width,
        int(overlap),
        ctypes.c_void_p(torch.cuda.current_stream(mixed.device).cuda_stream),
    )
    if status:
        raise RuntimeError(f"gdn_step failed for {batch} sequences of {tokens} rows: CUDA error {status}")
    return out

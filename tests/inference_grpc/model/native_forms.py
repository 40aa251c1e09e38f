"""Plain PyTorch in the place of the CUDA C++ kernels, argument for argument: what calls them runs on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.gated_delta_rule import reference as delta_reference


def unpacked_nvfp4(codes: torch.Tensor, scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """stream_gemm.cu's decode8 and scale_pair in integers; float64 [rows, columns]."""
    words = codes.contiguous().view(-1, 16).view(torch.int32).view(rows // 16, columns // 64, 32, 4).to(torch.int64)
    words, mask = words & 0xFFFFFFFF, 0x81C081C0

    def turned(by: int) -> torch.Tensor:
        return ((words >> by) | (words << (32 - by))) & 0xFFFFFFFF & mask

    pairs = torch.stack([words & mask, turned(3), turned(6), ((words & 0x001B001B) * 0x4108) & mask], dim=-1)
    halves = torch.stack([pairs & 0xFFFF, pairs >> 16], dim=-1).to(torch.int32).to(torch.int16).view(torch.bfloat16)
    values = (halves.double() * 2.0**126).unflatten(3, (2, 2)).flatten(-3)
    bytes_ = scales.view(rows // 16, columns // 64, 32, 2).to(torch.int32)
    factor = (bytes_ * 16 + 0x7580).to(torch.int16).view(torch.bfloat16).double() * 2.0**-118
    tiles = (values * factor[..., None]).unflatten(2, (8, 4))
    return tiles.permute(0, 4, 2, 1, 3, 5).reshape(rows, columns)


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
    output: str = "float",
    norm: Any = None,
    overlap: bool = False,
) -> None:
    from kernels.fp8.pack import unpack

    assert x.dtype == {"nvfp4": torch.bfloat16, "fp8": torch.float16}[format_]
    assert x.is_contiguous()
    assert x.shape[1] == columns
    if format_ == "nvfp4":
        assert scales is not None
        w = unpacked_nvfp4(codes, scales, rows, columns)
    else:
        w = unpack(codes.view(-1, 16), rows, columns).double()
    product = x.double() @ w.T * multiplier.double()
    if norm is not None:
        product *= torch.rsqrt(norm.square_sums.double().sum(1) / norm.width + 1e-6)[:, None]
    if output == "silu_mul":
        pairs = product.view(len(x), -1, 2, 8)
        y.copy_((torch.nn.functional.silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(len(x), -1))
        return
    assert y.shape == (splits, len(x), rows)
    y.zero_()
    y[0] = product  # the parts are added by whoever reads them


def dequantize(codes: torch.Tensor, scales: torch.Tensor, w: torch.Tensor) -> None:
    w.copy_(unpacked_nvfp4(codes, scales, *w.shape))


def delta_step(
    mixed: torch.Tensor,
    state: torch.Tensor,
    *rest: torch.Tensor,
    key_heads: int,
    out: torch.Tensor,
    gates: torch.Tensor | None = None,
    norm: Any = None,
    overlap: bool = False,
) -> torch.Tensor:
    whole = mixed.float().sum(0)
    heads, values = state.shape[1], state.shape[1] * state.shape[3]
    inputs = rest[2].shape[2] + values
    small = whole[..., inputs : inputs + 2 * heads] if gates is None else gates.view(*whole.shape[:2], -1).float()
    whole = torch.cat([whole[..., :inputs], small], -1)
    if norm is not None:
        whole = whole * torch.rsqrt(norm.square_sums.sum(1) / norm.width + 1e-6)[:, None, None]
    out.copy_(delta_reference.decode_step(whole, state, *rest, key_heads=key_heads))
    return out


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernels.hybrid_step
    import kernels.native.gemm

    monkeypatch.setattr(kernels.hybrid_step, "launch", launch)
    monkeypatch.setattr(kernels.hybrid_step, "delta_step", delta_step)
    monkeypatch.setattr(kernels.native.gemm, "launch", launch)
    monkeypatch.setattr(kernels.native.gemm, "dequantize", dequantize)

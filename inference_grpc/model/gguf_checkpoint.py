"""A GGUF file as a checkpoint: its names and layouts translated back to those of the model it was converted from.

Converters of `qwen35` change more than names. They store norms as 1 + w (but not the gated norm), A_log as -exp(A_log),
and value heads tiled: head r k + j of the model, j-th of the r that share key head k, stands at place j x keys + k.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import torch
from gguf import GGMLQuantizationType

from inference_grpc.model.checkpoint import MatrixSize
from inference_grpc.model.formats import Matrix, Nvfp4, Plain
from inference_grpc.model.gguf import GgufError, GgufFile
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.memory import KvFormat
from kernels.nvfp4.format import BadCheckpoint, from_gguf

_TOP: Final = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_MTP: Final = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}
# Copies of the embedding and the head that some files carry for the draft layer; it uses the model's own.
_IGNORED: Final = re.compile(r"blk\.\d+\.nextn\.(embed_tokens|shared_head_head)\.weight")
_BARE: Final = ("ssm_a", "ssm_dt.bias")  # stored without `.weight`
_PLAIN: Final = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def gguf_name(name: str, *, hybrid: HybridConfig | None = None) -> str:
    """Where a tensor of the model is in a GGUF file; `name` may end in `.bias`."""
    name, bias = (name.removesuffix(".bias"), True) if name.endswith(".bias") else (name, False)
    if name in _TOP:
        return f"{_TOP[name]}.weight"
    if name == "rope_freqs":
        return "rope_freqs.weight"
    number, part = _layer_of(name, hybrid)
    if part == "post_attention_layernorm":
        stored = "post_attention_norm" if hybrid else "ffn_norm"
    else:
        stored = _LAYER.get(part) or _MTP[part]
    return f"blk.{number}.{stored}" + ("" if stored in _BARE else ".bias" if bias else ".weight")


def _layer_of(name: str, hybrid: HybridConfig | None) -> tuple[int, str]:
    if name.startswith("mtp."):
        assert hybrid is not None, "only hybrids have a draft layer"
        part = name.removeprefix("mtp.").removeprefix("layers.0.")
        return len(hybrid.layer_kinds), part
    _, number, part = name.split(".", 2)
    return int(number), part


class GgufCheckpoint:
    """Implements `checkpoint.Checkpoint`. `hybrid`: the configuration, if the file holds a `qwen35`."""

    kv: KvFormat = "float32"  # GGUF does not say

    def __init__(self, file: GgufFile, *, rotates_pairs: bool, hybrid: HybridConfig | None = None) -> None:
        self.path: Path = file.path
        self.rotates_pairs = rotates_pairs
        self._file = file
        self._hybrid = hybrid
        self._unread = {name for name in file.tensors if not _IGNORED.fullmatch(name)}

    def __contains__(self, name: str) -> bool:
        return self.stored_name(name) in self._file.tensors

    def stored_name(self, name: str) -> str:
        return gguf_name(name, hybrid=self._hybrid)

    def vector(self, name: str, *shape: int) -> torch.Tensor:
        stored = self.stored_name(name)
        self._unread.discard(stored)
        values = torch.from_numpy(self._file.read(stored, shape))
        if self._hybrid is None:
            return values
        if name.endswith(("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")):
            return values if name.endswith("linear_attn.norm") else values - 1.0
        if name.endswith("A_log"):
            if bool((values >= 0).any()):
                raise GgufError(f"{self.path}: tensor {stored!r} must be negative: it is -exp(A_log).")
            values = (-values).log()
        order = value_rows(name, self._hybrid)
        return values if order is None else values[order]

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        stored = self.stored_name(name)
        self._unread.discard(stored)
        matrix = self._read(stored, rows, columns)
        if self._hybrid is not None:
            if name.endswith("linear_attn.out_proj"):
                return matrix.columns(head_order(self._hybrid, self._hybrid.value_size))
            order = value_rows(name, self._hybrid)
            return matrix if order is None else matrix.rows(order)
        return matrix

    def size(self, name: str) -> MatrixSize:
        stored = self.stored_name(name)
        info = self._file.tensors.get(stored)
        if info is None:
            raise GgufError(f"{self.path}: tensor {stored!r} is missing.")
        return MatrixSize(info.shape[0], info.shape[-1], info.type.name.lower(), info.nbytes)

    def check_all_read(self) -> None:
        if self._unread:
            raise GgufError(
                f"{self.path}: tensor {min(self._unread)!r} has no place in the model that the metadata describe "
                f"({len(self._unread)} such tensors); it needs something that is not supported."
            )

    def _read(self, stored: str, rows: int, columns: int) -> Matrix:
        info = self._file.tensors.get(stored)
        kind = info.type if info is not None else None
        if kind == GGMLQuantizationType.NVFP4:
            return self._nvfp4(stored, rows, columns)
        values = self._file.read(stored, (rows, columns))
        dtype = torch.float32 if kind is None else _PLAIN.get(kind, torch.float32)
        return Plain(torch.from_numpy(values).to(dtype))

    def _nvfp4(self, stored: str, rows: int, columns: int) -> Matrix:
        values = self._file.read(stored, (rows, columns))  # also checks shape and scales
        scale = self._sidecar(stored, "scale")
        if scale is None:  # written by a quantizer that knows no scale of the whole tensor
            return Plain(torch.from_numpy(values))
        blocks = torch.from_numpy(np.array(self._file.raw(stored))).view(rows, -1, 36)
        try:
            return Nvfp4(from_gguf(blocks, scale, self._sidecar(stored, "input_scale")))
        except BadCheckpoint as error:
            raise GgufError(f"{self.path}: tensor {stored!r}: {error}.") from error

    def _sidecar(self, stored: str, kind: str) -> float | None:
        for name in (f"{stored.removesuffix('.weight')}.{kind}", f"{stored}.{kind}"):
            if name in self._file.tensors:
                self._unread.discard(name)
                return float(self._file.read(name, (1,))[0])
        return None


def head_order(config: HybridConfig, size: int) -> torch.Tensor:
    """For each row of value heads in the model's order, its place in the file; heads of `size` rows."""
    shared = config.value_heads // config.key_heads
    heads = torch.arange(config.value_heads)
    places = heads % shared * config.key_heads + heads // shared
    return (places[:, None] * size + torch.arange(size)).flatten()


def value_rows(name: str, config: HybridConfig) -> torch.Tensor | None:
    """The order of a tensor's rows, if value heads are among them."""
    part = name.rpartition("linear_attn.")[2]
    if part in ("in_proj_b", "in_proj_a", "A_log", "dt_bias"):
        return head_order(config, 1)
    if part == "in_proj_z":
        return head_order(config, config.value_size)
    if part in ("in_proj_qkv", "conv1d"):
        keys = 2 * config.key_channels
        return torch.cat([torch.arange(keys), keys + head_order(config, config.value_size)])
    return None


def inverse(order: torch.Tensor) -> torch.Tensor:
    """From the model's order to the file's."""
    return torch.argsort(order)

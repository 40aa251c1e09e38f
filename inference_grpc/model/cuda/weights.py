"""The weights of a `qwen3_5` model out of a checkpoint, on the device, for both ways of computing a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference_grpc.model.checkpoint import Checkpoint
from inference_grpc.model.cuda.matrices import DeviceMatrix, MatrixMaker
from inference_grpc.model.formats import Fp8, Matrix, Plain
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from kernels.hybrid_step import AttentionLayer, DeltaLayer, Embedding, StepLayer, Trunk

Convert = Callable[[str, Matrix], Matrix]


@dataclass(frozen=True, eq=False)
class DeltaMatrices:
    inward: DeviceMatrix  # q | k | v | z, and b | a unless there are `gates`
    gates: torch.Tensor | None  # bf16 [b | a, hidden]
    outward: DeviceMatrix


@dataclass(frozen=True, eq=False)
class AttentionMatrices:
    inward: DeviceMatrix
    outward: DeviceMatrix


@dataclass(frozen=True, eq=False)
class LayerMatrices:
    mixer: DeltaMatrices | AttentionMatrices
    gate_up: DeviceMatrix
    down: DeviceMatrix


@dataclass(frozen=True, eq=False)
class DeviceWeights:
    """`trunk` is what the fused step reads; `layers` and `head` are the same matrices with their products."""

    trunk: Trunk
    layers: list[LayerMatrices]
    head: DeviceMatrix

    @property
    def nbytes(self) -> int:
        matrices = [self.head]
        for layer in self.layers:
            matrices += [layer.mixer.inward, layer.mixer.outward, layer.gate_up, layer.down]
        return self.trunk.embedding.nbytes + sum(matrix.step.nbytes for matrix in matrices)


class _Reader:
    def __init__(self, checkpoint: Checkpoint, config: HybridConfig, convert: Convert, maker: MatrixMaker) -> None:
        self.checkpoint, self.config = checkpoint, config
        self._convert, self._maker = convert, maker

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        return self._convert(name, self.checkpoint.matrix(name, rows, columns))

    def stacked(self, *parts: tuple[str, int, int], pairs: bool = False) -> DeviceMatrix:
        return self._maker.make([self.matrix(*part) for part in parts], pairs=pairs)


def load_device_weights(
    checkpoint: Checkpoint, config: HybridConfig, convert: Convert, maker: MatrixMaker, device: torch.device
) -> DeviceWeights:
    """Raises `ModelFileError` as `load_hybrid_weights` does. The draft layer is read and left: nobody drafts here."""
    reader = _Reader(checkpoint, config, convert, maker)

    def vector(name: str, *shape: int) -> torch.Tensor:
        return checkpoint.vector(name, *shape).to(device)

    layers, matrices = [], []
    for number, kind in enumerate(config.layer_kinds):
        prefix = f"layers.{number}."
        hidden, inner = config.hidden, config.feed_forward
        mixer: DeltaLayer | AttentionLayer
        held: DeltaMatrices | AttentionMatrices
        if kind == "full_attention":
            mixer, held = _attention(reader, f"{prefix}self_attn.", vector)
        else:
            mixer, held = _delta_net(reader, maker, f"{prefix}linear_attn.", vector)
        gate_up = reader.stacked(
            (f"{prefix}mlp.gate_proj", inner, hidden), (f"{prefix}mlp.up_proj", inner, hidden), pairs=True
        )
        down = reader.stacked((f"{prefix}mlp.down_proj", hidden, inner))
        input_norm, post_norm = (vector(f"{prefix}{name}_layernorm", hidden) for name in ("input", "post_attention"))
        layers.append(StepLayer(input_norm, mixer, post_norm, gate_up.step, down.step))
        matrices.append(LayerMatrices(held, gate_up, down))
    embedding = _embedding(reader.matrix("embed_tokens", config.vocabulary, config.hidden), device)
    head_name = "embed_tokens" if config.is_tied and "lm_head" not in checkpoint else "lm_head"
    head = reader.stacked((head_name, config.vocabulary, config.hidden))
    norm = vector("norm", config.hidden)
    _leave_draft_layer(checkpoint, config)
    checkpoint.check_all_read()
    return DeviceWeights(Trunk(embedding, layers, norm, head.step), matrices, head)


def _embedding(matrix: Matrix, device: torch.device) -> Embedding:
    """FP8 stays as it is; anything else is kept in bfloat16."""
    if isinstance(matrix, Fp8):
        return Embedding(matrix.values.to(device), matrix.scale.to(device, torch.float32))
    return Embedding(matrix.to_float().to(device, torch.bfloat16))


def _attention(
    reader: _Reader, prefix: str, vector: Callable[..., torch.Tensor]
) -> tuple[AttentionLayer, AttentionMatrices]:
    config = reader.config
    hidden, size = config.hidden, config.head_size
    queries, keys = config.heads * size, config.kv_heads * size
    inward = reader.stacked(
        (f"{prefix}q_proj", 2 * queries, hidden), (f"{prefix}k_proj", keys, hidden), (f"{prefix}v_proj", keys, hidden)
    )
    outward = reader.stacked((f"{prefix}o_proj", hidden, queries))
    norms = vector(f"{prefix}q_norm", size), vector(f"{prefix}k_norm", size)
    return AttentionLayer(inward.step, outward.step, *norms), AttentionMatrices(inward, outward)


def _delta_net(
    reader: _Reader, maker: MatrixMaker, prefix: str, vector: Callable[..., torch.Tensor]
) -> tuple[DeltaLayer, DeltaMatrices]:
    config = reader.config
    hidden, heads = config.hidden, config.value_heads
    wide = [
        reader.matrix(f"{prefix}in_proj_qkv", config.conv_channels, hidden),
        reader.matrix(f"{prefix}in_proj_z", config.value_channels, hidden),
    ]
    narrow = [reader.matrix(f"{prefix}in_proj_{name}", heads, hidden) for name in "ba"]
    # Narrow weights stand beside gates that a recipe keeps wide; then the gates are a small product of their own.
    is_one = len({matrix.format in ("fp8", "nvfp4") and matrix.format for matrix in (*wide, *narrow)}) == 1
    inward = maker.make([*wide, *narrow] if is_one else wide)
    small = None if is_one else maker.make(narrow).step
    if small is not None and small.kind != "bf16":
        small = maker.make([Plain(matrix.to_float()) for matrix in narrow]).step
    outward = reader.stacked((f"{prefix}out_proj", hidden, config.value_channels))
    gates = None if small is None else small.codes
    layer = DeltaLayer(
        inward.step,
        gates,
        outward.step,
        vector(f"{prefix}conv1d", config.conv_channels, CONV_TAPS).T.contiguous(),
        vector(f"{prefix}A_log", heads),
        vector(f"{prefix}dt_bias", heads),
        vector(f"{prefix}norm", config.value_size),
    )
    return layer, DeltaMatrices(inward, gates, outward)


def _leave_draft_layer(checkpoint: Checkpoint, config: HybridConfig) -> None:
    """So that `check_all_read` speaks of what is unknown only."""
    if "mtp.fc" not in checkpoint:
        return
    hidden, inner, size = config.hidden, config.feed_forward, config.head_size
    queries, keys, prefix = config.heads * size, config.kv_heads * size, "mtp.layers.0."
    for name, rows, columns in (
        ("mtp.fc", hidden, 2 * hidden),
        (f"{prefix}self_attn.q_proj", 2 * queries, hidden),
        (f"{prefix}self_attn.k_proj", keys, hidden),
        (f"{prefix}self_attn.v_proj", keys, hidden),
        (f"{prefix}self_attn.o_proj", hidden, queries),
        (f"{prefix}mlp.gate_proj", inner, hidden),
        (f"{prefix}mlp.up_proj", inner, hidden),
        (f"{prefix}mlp.down_proj", hidden, inner),
    ):
        checkpoint.matrix(name, rows, columns)
    for name, length in (
        ("mtp.pre_fc_norm_embedding", hidden),
        ("mtp.pre_fc_norm_hidden", hidden),
        ("mtp.norm", hidden),
        (f"{prefix}input_layernorm", hidden),
        (f"{prefix}post_attention_layernorm", hidden),
        (f"{prefix}self_attn.q_norm", size),
        (f"{prefix}self_attn.k_norm", size),
    ):
        checkpoint.vector(name, length)

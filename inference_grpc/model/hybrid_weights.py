"""The weights of a `qwen3_5` model out of a checkpoint, checked for shape and completeness, ready for the forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch

from inference_grpc.model.checkpoint import Checkpoint
from inference_grpc.model.formats import Matrix
from inference_grpc.model.gated_delta_net import GatedDeltaNetWeights, pad_lanes
from inference_grpc.model.hybrid import GatedAttentionWeights, HybridLayer, HybridWeights, MtpWeights
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from inference_grpc.model.linear import Linear, Numerics, make_linear

logger = logging.getLogger(__name__)

# (name, matrix as stored) -> matrix as it is to be applied: where a recipe narrows weights at load.
Convert = Callable[[str, Matrix], Matrix]


class _Reader:
    def __init__(self, checkpoint: Checkpoint, numerics: Numerics, convert: Convert) -> None:
        self.checkpoint = checkpoint
        self._numerics = numerics
        self._convert = convert

    def linear(self, *parts: tuple[str, int, int]) -> Linear:
        """One layer of the named matrices [rows, columns], stacked by rows."""
        matrices = [self._convert(name, self.checkpoint.matrix(name, rows, columns)) for name, rows, columns in parts]
        return make_linear(matrices, self._numerics)

    def vector(self, name: str, *shape: int) -> torch.Tensor:
        return self.checkpoint.vector(name, *shape)

    def centred(self, name: str, size: int) -> torch.Tensor:
        """A norm weight that is stored as its distance from one."""
        return 1.0 + self.checkpoint.vector(name, size)


def load_hybrid_weights(
    checkpoint: Checkpoint, config: HybridConfig, numerics: Numerics, convert: Convert = lambda name, matrix: matrix
) -> HybridWeights:
    """Raises `ModelFileError` naming a tensor that is missing, misshapen, not finite, or would be left unread."""
    reader = _Reader(checkpoint, numerics, convert)
    embedding = checkpoint.matrix("embed_tokens", config.vocabulary, config.hidden)
    head_name = "embed_tokens" if config.is_tied and "lm_head" not in checkpoint else "lm_head"
    weights = HybridWeights(
        embedding=_table(embedding),
        layers=[_layer(reader, config, f"layers.{n}.", kind) for n, kind in enumerate(config.layer_kinds)],
        norm=reader.centred("norm", config.hidden),
        head=reader.linear((head_name, config.vocabulary, config.hidden)),
        mtp=_mtp(reader, config),
    )
    checkpoint.check_all_read()
    return weights


def _table(matrix: Matrix) -> torch.Tensor:
    """Rows are looked up, not multiplied, so a plain table stays as narrow as it is stored."""
    return matrix.values if matrix.format in ("f32", "f16", "bf16") else matrix.to_float()  # type: ignore[union-attr]


def _layer(reader: _Reader, config: HybridConfig, prefix: str, kind: str) -> HybridLayer:
    hidden, inner = config.hidden, config.feed_forward
    return HybridLayer(
        input_norm=reader.centred(f"{prefix}input_layernorm", hidden),
        mixer=_attention(reader, config, f"{prefix}self_attn.")
        if kind == "full_attention"
        else _delta_net(reader, config, f"{prefix}linear_attn."),
        post_norm=reader.centred(f"{prefix}post_attention_layernorm", hidden),
        gate_up=reader.linear((f"{prefix}mlp.gate_proj", inner, hidden), (f"{prefix}mlp.up_proj", inner, hidden)),
        down=reader.linear((f"{prefix}mlp.down_proj", hidden, inner)),
    )


def _attention(reader: _Reader, config: HybridConfig, prefix: str) -> GatedAttentionWeights:
    hidden, size = config.hidden, config.head_size
    queries, keys = config.heads * size, config.kv_heads * size
    return GatedAttentionWeights(
        in_projection=reader.linear(
            (f"{prefix}q_proj", 2 * queries, hidden),
            (f"{prefix}k_proj", keys, hidden),
            (f"{prefix}v_proj", keys, hidden),
        ),
        query_norm=reader.centred(f"{prefix}q_norm", size),
        key_norm=reader.centred(f"{prefix}k_norm", size),
        out_projection=reader.linear((f"{prefix}o_proj", hidden, queries)),
    )


def _delta_net(reader: _Reader, config: HybridConfig, prefix: str) -> GatedDeltaNetWeights:
    hidden, heads = config.hidden, config.value_heads
    conv = reader.vector(f"{prefix}conv1d", config.conv_channels, CONV_TAPS)
    return GatedDeltaNetWeights(
        in_projection=reader.linear(
            (f"{prefix}in_proj_qkv", config.conv_channels, hidden),
            (f"{prefix}in_proj_z", config.value_channels, hidden),
        ),
        gate_projection=reader.linear((f"{prefix}in_proj_b", heads, hidden), (f"{prefix}in_proj_a", heads, hidden)),
        conv=conv.T.contiguous(),
        a_log=pad_lanes(reader.vector(f"{prefix}A_log", heads)),
        dt_bias=pad_lanes(reader.vector(f"{prefix}dt_bias", heads)),
        norm=reader.vector(f"{prefix}norm", config.value_size),
        out_projection=reader.linear((f"{prefix}out_proj", hidden, config.value_channels)),
    )


def _mtp(reader: _Reader, config: HybridConfig) -> MtpWeights | None:
    """None where the file has no draft layer, whatever its configuration says."""
    if "mtp.fc" not in reader.checkpoint:
        if config.mtp_layers:
            logger.warning("mtp_missing path=%s: the configuration names a draft layer", reader.checkpoint.path)
        return None
    hidden = config.hidden
    return MtpWeights(
        projection=reader.linear(("mtp.fc", hidden, 2 * hidden)),
        embedding_norm=reader.centred("mtp.pre_fc_norm_embedding", hidden),
        hidden_norm=reader.centred("mtp.pre_fc_norm_hidden", hidden),
        layer=_layer(reader, config, "mtp.layers.0.", "full_attention"),
        norm=reader.centred("mtp.norm", hidden),
    )


def matrix_names(config: HybridConfig, with_mtp: bool) -> Iterable[str]:
    """Every matrix of the model by name, in the order of the layers."""
    yield "embed_tokens"
    layers = [(f"layers.{n}.", kind) for n, kind in enumerate(config.layer_kinds)]
    if with_mtp:
        yield "mtp.fc"
        layers.append(("mtp.layers.0.", "full_attention"))
    for prefix, kind in layers:
        parts = (
            [f"self_attn.{part}_proj" for part in "qkvo"]
            if kind == "full_attention"
            else [f"linear_attn.{part}" for part in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")]
        )
        yield from (f"{prefix}{part}" for part in (*parts, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
    if not config.is_tied:
        yield "lm_head"

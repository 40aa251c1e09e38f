"""The shape of a `qwen3_5` model: Gated DeltaNet and gated attention in turn, and a draft layer for several tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.gguf import GgufError, GgufFile
from inference_grpc.model.rope import RopeScaling, read_gguf_rope, read_hf_rope

LayerKind = Literal["linear_attention", "full_attention"]
CONV_TAPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig:
    hidden: int
    feed_forward: int
    layer_kinds: tuple[LayerKind, ...]
    vocabulary: int
    context_tokens: int
    norm_epsilon: float
    is_tied: bool  # the head is the embedding
    # Gated attention
    heads: int
    kv_heads: int
    head_size: int
    rotated: int  # the first dimensions of a head, in halves
    rope_base: float
    rope: RopeScaling
    # Gated DeltaNet
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    mtp_layers: int = 0

    @property
    def key_channels(self) -> int:
        return self.key_heads * self.key_size

    @property
    def value_channels(self) -> int:
        return self.value_heads * self.value_size

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_channels + self.value_channels

    @property
    def linear_layers(self) -> int:
        return self.layer_kinds.count("linear_attention")

    @property
    def full_layers(self) -> int:
        return self.layer_kinds.count("full_attention")


def read_hf_config(path: Path, content: dict[str, Any]) -> HybridConfig:
    """From config.json, multimodal or text only. Raises `ModelFileError` naming the key and what may stand there."""
    text: dict[str, Any] = content.get("text_config", content)
    number = _number_reader(path, text)
    given: dict[str, Any] = text.get("rope_parameters") or text.get("rope_scaling") or {}
    base = float(given.get("rope_theta", text.get("rope_theta", 10_000_000.0)))
    head_size = number("head_dim")
    rotated = int(head_size * float(given.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))))
    rope = read_hf_rope(path, given, base=base, dims=rotated, trained=number("max_position_embeddings"))
    layers = number("num_hidden_layers")
    kinds = text.get("layer_types")
    if kinds is None:
        interval = number("full_attention_interval", 4)
        kinds = ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(layers)]
    for key, wanted in (("hidden_act", "silu"), ("linear_conv_kernel_dim", CONV_TAPS), ("attention_bias", False)):
        if text.get(key, wanted) != wanted:
            raise ModelFileError(f"{path}: {key} is {text[key]!r}; supported is {wanted!r}.")
    if not text.get("attn_output_gate", True):
        raise ModelFileError(f"{path}: attn_output_gate is false; supported is true.")
    return checked(
        path,
        HybridConfig(
            hidden=number("hidden_size"),
            feed_forward=number("intermediate_size"),
            layer_kinds=tuple(kinds),
            vocabulary=number("vocab_size"),
            context_tokens=rope.context_tokens,
            norm_epsilon=float(text.get("rms_norm_eps", 1e-6)),
            is_tied=bool(text.get("tie_word_embeddings", content.get("tie_word_embeddings", False))),
            heads=number("num_attention_heads"),
            kv_heads=number("num_key_value_heads"),
            head_size=head_size,
            rotated=rotated,
            rope_base=base,
            rope=rope,
            key_heads=number("linear_num_key_heads"),
            value_heads=number("linear_num_value_heads"),
            key_size=number("linear_key_head_dim"),
            value_size=number("linear_value_head_dim"),
            mtp_layers=text.get("mtp_num_hidden_layers", 0) or 0,
        ),
        layers,
    )


def read_gguf_config(file: GgufFile) -> HybridConfig:
    """From the metadata of a `qwen35` file."""

    def number(key: str, default: int | None = None) -> int:
        value = file.require(f"qwen35.{key}") if default is None else file.metadata.get(f"qwen35.{key}", default)
        if isinstance(value, list) and value and len(set(value) - {0}) == 1:
            value = max(value)  # one entry a layer, zero where the layer has no heads
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise GgufError(f"{file.path}: qwen35.{key} is {str(value)[:40]}; it must be one whole number.")
        return value

    if number("ssm.conv_kernel") != CONV_TAPS:
        raise GgufError(f"{file.path}: qwen35.ssm.conv_kernel must be {CONV_TAPS}.")
    mtp_layers = number("nextn_predict_layers", 0)
    layers = number("block_count") - mtp_layers
    interval = number("full_attention_interval", 4) or 4
    kinds: list[LayerKind] = ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(layers)]
    value_heads, head_size = number("ssm.time_step_rank"), number("attention.key_length")
    base, rotated = (
        float(file.metadata.get("qwen35.rope.freq_base", 10_000_000.0)),
        number("rope.dimension_count", head_size),
    )
    rope = read_gguf_rope(file, "qwen35", base=base, dims=rotated, trained=number("context_length"))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or not value_heads:
        raise GgufError(f"{file.path}: tensor 'token_embd.weight' or the value heads are missing.")
    return checked(
        file.path,
        HybridConfig(
            hidden=number("embedding_length"),
            feed_forward=number("feed_forward_length"),
            layer_kinds=tuple(kinds),
            vocabulary=embedding.shape[0],
            context_tokens=rope.context_tokens,
            norm_epsilon=float(file.require("qwen35.attention.layer_norm_rms_epsilon")),
            is_tied="output.weight" not in file.tensors,
            heads=number("attention.head_count"),
            kv_heads=number("attention.head_count_kv"),
            head_size=head_size,
            rotated=rotated,
            rope_base=base,
            rope=rope,
            key_heads=number("ssm.group_count"),
            value_heads=value_heads,
            key_size=number("ssm.state_size"),
            value_size=number("ssm.inner_size") // value_heads,
            mtp_layers=mtp_layers,
        ),
        layers,
    )


def checked(path: Path, config: HybridConfig, layers: int) -> HybridConfig:
    """The contradictions that any container may have."""
    if len(config.layer_kinds) != layers or not set(config.layer_kinds) <= {"linear_attention", "full_attention"}:
        raise ModelFileError(f"{path}: layer_types must name linear_attention or full_attention for each of {layers}.")
    for shared, by, what in (
        (config.heads, config.kv_heads, "query heads cannot share"),
        (config.value_heads, config.key_heads, "value heads cannot share"),
    ):
        if not by or shared % by:
            raise ModelFileError(f"{path}: {shared} {what} {by} key heads evenly.")
    if config.rotated % 2 or not 0 < config.rotated <= config.head_size:
        raise ModelFileError(f"{path}: {config.rotated} of {config.head_size} dimensions cannot be rotated in pairs.")
    if config.mtp_layers > 1:
        raise ModelFileError(f"{path}: mtp_num_hidden_layers is {config.mtp_layers}; supported are 0 and 1.")
    return config


def _number_reader(path: Path, text: dict[str, Any]) -> Callable[..., int]:
    def number(key: str, default: int | None = None) -> int:
        value = text.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelFileError(f"{path}: {key} is {value!r}; it must be a positive whole number.")
        return value

    return number

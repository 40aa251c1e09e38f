"""The shape of a dense model (Llama, Qwen2, Qwen3). Whatever we could only run wrongly is refused here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.gguf import GgufError, GgufFile
from inference_grpc.model.rope import RopeScaling, read_gguf_rope, read_hf_rope

# Of each family: whether queries, keys and values have a bias, and whether queries and keys are normed by head.
FAMILIES: Final = {"llama": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context_tokens: int
    norm_epsilon: float
    rope_base: float
    rope: RopeScaling
    is_tied: bool = False
    has_bias: bool = False
    has_head_norm: bool = False


def read_config(file: GgufFile) -> LlamaConfig:
    """Raises `GgufError` naming the key whose value is missing, contradictory or not supported."""
    family = file.require("general.architecture")
    if family not in FAMILIES:
        known = ", ".join(repr(name) for name in (*FAMILIES, "qwen35"))
        raise GgufError(f"{file.path}: the architecture is {family!r}; this engine runs {known}.")
    if file.metadata.get("split.count", 1) > 1:
        raise GgufError(f"{file.path}: the model is split over several files; join them first (gguf-split --merge).")
    if file.metadata.get(f"{family}.expert_count", 0) > 0:
        raise GgufError(f"{file.path}: {family}.expert_count is set; mixtures of experts are not supported.")

    heads = _positive(file, f"{family}.attention.head_count")
    hidden = _positive(file, f"{family}.embedding_length")
    head_size = _positive(file, f"{family}.attention.key_length", default=hidden // heads)
    value_size = _positive(file, f"{family}.attention.value_length", default=head_size)
    rotated = _positive(file, f"{family}.rope.dimension_count", default=head_size)
    if rotated != head_size or value_size != head_size:
        raise GgufError(
            f"{file.path}: heads of {head_size} values with {rotated} rotated and values of {value_size} "
            "are not supported; all three must be one even number."
        )
    has_bias, has_head_norm = FAMILIES[family]
    base, trained = (
        float(file.metadata.get(f"{family}.rope.freq_base", 10_000.0)),
        _positive(file, f"{family}.context_length"),
    )
    rope = read_gguf_rope(file, family, base=base, dims=head_size, trained=trained)
    return _checked(
        file.path,
        LlamaConfig(
            layers=_positive(file, f"{family}.block_count"),
            hidden=hidden,
            feed_forward=_positive(file, f"{family}.feed_forward_length"),
            heads=heads,
            kv_heads=_positive(file, f"{family}.attention.head_count_kv", default=heads),
            head_size=head_size,
            vocabulary=_vocabulary(file, family),
            context_tokens=rope.context_tokens,
            norm_epsilon=float(file.require(f"{family}.attention.layer_norm_rms_epsilon")),
            rope_base=base,
            rope=rope,
            is_tied="output.weight" not in file.tensors,
            has_bias=has_bias,
            has_head_norm=has_head_norm,
        ),
    )


def read_hf_dense_config(path: Path, content: dict[str, Any]) -> LlamaConfig:
    """From config.json. Raises `ModelFileError` naming the key."""
    family = content.get("model_type")
    assert family in FAMILIES, "asked for only when it is one of them"

    def number(key: str, default: int | None = None) -> int:
        value = content.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelFileError(f"{path}: {key} is {value!r}; it must be a positive whole number.")
        return value

    for key, wanted in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("use_sliding_window", False),
    ):
        if content.get(key, wanted) != wanted:
            raise ModelFileError(f"{path}: {key} is {content[key]!r}; supported is {wanted!r}.")
    heads, hidden = number("num_attention_heads"), number("hidden_size")
    head_size = number("head_dim", hidden // heads)
    given: dict[str, Any] = content.get("rope_parameters") or content.get("rope_scaling") or {}
    base = float(given.get("rope_theta", content.get("rope_theta", 10_000.0)))
    rope = read_hf_rope(path, given, base=base, dims=head_size, trained=number("max_position_embeddings"))
    has_bias, has_head_norm = FAMILIES[family]
    return _checked(
        path,
        LlamaConfig(
            layers=number("num_hidden_layers"),
            hidden=hidden,
            feed_forward=number("intermediate_size"),
            heads=heads,
            kv_heads=number("num_key_value_heads", heads),
            head_size=head_size,
            vocabulary=number("vocab_size"),
            context_tokens=rope.context_tokens,
            norm_epsilon=float(content.get("rms_norm_eps", 1e-6)),
            rope_base=base,
            rope=rope,
            is_tied=bool(content.get("tie_word_embeddings", False)),
            has_bias=has_bias,
            has_head_norm=has_head_norm,
        ),
    )


def _checked(path: Path, config: LlamaConfig) -> LlamaConfig:
    if config.heads % config.kv_heads:
        raise GgufError(f"{path}: {config.heads} query heads cannot share {config.kv_heads} key-value heads evenly.")
    if config.head_size % 2:
        raise GgufError(f"{path}: heads of {config.head_size} values cannot be rotated in pairs.")
    return config


def _positive(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.require(key) if default is None else file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise GgufError(f"{file.path}: {key} is {str(value)[:40]}; it must be one positive whole number.")
    return value


def _vocabulary(file: GgufFile, family: str) -> int:
    """The rows of the embedding are the truth; the declared sizes must not contradict them."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise GgufError(f"{file.path}: tensor 'token_embd.weight' is missing.")
    rows = embedding.shape[0]
    tokens = len(file.require("tokenizer.ggml.tokens"))
    declared = file.metadata.get(f"{family}.vocab_size", rows)
    if declared != rows or tokens > rows:
        raise GgufError(
            f"{file.path}: the embedding has {rows} rows, {family}.vocab_size is {declared} and there are "
            f"{tokens} tokens."
        )
    return rows

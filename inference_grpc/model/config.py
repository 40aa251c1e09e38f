"""The shape of a Llama-like model, from GGUF metadata. Whatever we could only run wrongly is refused here."""

from __future__ import annotations

from dataclasses import dataclass

from inference_grpc.model.gguf import GgufError, GgufFile


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
    rope_scale: float = 1.0  # positions are divided by it


def read_config(file: GgufFile) -> LlamaConfig:
    """Raises `GgufError` naming the key whose value is missing, contradictory or not supported."""
    architecture = file.require("general.architecture")
    if architecture != "llama":
        raise GgufError(f"{file.path}: the architecture is {architecture!r}; this engine runs 'llama'.")
    if file.metadata.get("split.count", 1) > 1:
        raise GgufError(f"{file.path}: the model is split over several files; join them first (gguf-split --merge).")
    if file.metadata.get("llama.expert_count", 0) > 0:
        raise GgufError(f"{file.path}: llama.expert_count is set; mixtures of experts are not supported.")

    heads = _positive(file, "llama.attention.head_count")
    kv_heads = _positive(file, "llama.attention.head_count_kv", default=heads)
    hidden = _positive(file, "llama.embedding_length")
    head_size = _positive(file, "llama.attention.key_length", default=hidden // heads)
    value_size = _positive(file, "llama.attention.value_length", default=head_size)
    rotated = _positive(file, "llama.rope.dimension_count", default=head_size)
    if heads % kv_heads:
        raise GgufError(f"{file.path}: {heads} query heads cannot share {kv_heads} key-value heads evenly.")
    if rotated != head_size or value_size != head_size or head_size % 2:
        raise GgufError(
            f"{file.path}: heads of {head_size} values with {rotated} rotated and values of {value_size} "
            "are not supported; all three must be one even number."
        )
    return LlamaConfig(
        layers=_positive(file, "llama.block_count"),
        hidden=hidden,
        feed_forward=_positive(file, "llama.feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=_vocabulary(file),
        context_tokens=_positive(file, "llama.context_length"),
        norm_epsilon=float(file.require("llama.attention.layer_norm_rms_epsilon")),
        rope_base=float(file.metadata.get("llama.rope.freq_base", 10_000.0)),
        rope_scale=_rope_scale(file),
    )


def _positive(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.require(key) if default is None else file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise GgufError(f"{file.path}: {key} is {str(value)[:40]}; it must be one positive whole number.")
    return value


def _vocabulary(file: GgufFile) -> int:
    """The rows of the embedding are the truth; the declared sizes must not contradict them."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise GgufError(f"{file.path}: tensor 'token_embd.weight' is missing.")
    rows = embedding.shape[0]
    tokens = len(file.require("tokenizer.ggml.tokens"))
    declared = file.metadata.get("llama.vocab_size", rows)
    if declared != rows or tokens != rows:
        raise GgufError(
            f"{file.path}: the embedding has {rows} rows, llama.vocab_size is {declared} and there are {tokens} tokens."
        )
    return rows


def _rope_scale(file: GgufFile) -> float:
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return 1.0
    if kind == "linear":
        factor = float(file.require("llama.rope.scaling.factor"))
        if factor > 0:
            return factor
        raise GgufError(f"{file.path}: llama.rope.scaling.factor is {factor}; it must be positive.")
    raise GgufError(f"{file.path}: llama.rope.scaling.type is {kind!r}; supported are none and linear.")

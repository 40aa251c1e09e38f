"""The weights of a dense model out of a checkpoint: checked for shape and completeness, packed for the forward."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from inference_grpc.model.checkpoint import Checkpoint
from inference_grpc.model.config import LlamaConfig
from inference_grpc.model.formats import Matrix, Plain
from inference_grpc.model.linear import Linear, Numerics, make_linear

# (name, matrix as stored) -> matrix as it is to be applied: where a recipe narrows weights at load.
Convert = Callable[[str, Matrix], Matrix]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: torch.Tensor
    query_key_value: Linear  # rows: queries, keys, values; heads ordered for rotation in pairs
    query_key_value_bias: torch.Tensor | None
    query_norm: torch.Tensor | None  # [head size]
    key_norm: torch.Tensor | None
    attention_output: Linear
    feed_forward_norm: torch.Tensor
    gate_up: Linear  # rows: gate, up
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: torch.Tensor
    layers: list[LayerWeights]
    output_norm: torch.Tensor
    head: Linear
    rope_factors: torch.Tensor  # [head size / 2]; each rotation frequency is divided by its factor


def load_weights(
    checkpoint: Checkpoint, config: LlamaConfig, numerics: Numerics, convert: Convert = lambda name, matrix: matrix
) -> LlamaWeights:
    """Raises `ModelFileError` naming the tensor that is missing, of the wrong shape, or would be left unread."""
    # Dequantizing and packing release the interpreter lock, and a start waits for nothing else.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as workers:
        ends_future = workers.submit(_ends, checkpoint, config, numerics, convert)
        layers = list(workers.map(lambda n: _layer(checkpoint, config, numerics, convert, n), range(config.layers)))
        embedding, head = ends_future.result()
    norm = checkpoint.vector("norm", config.hidden)
    factors = _rope_factors(checkpoint, config)
    checkpoint.check_all_read()
    return LlamaWeights(embedding, layers, norm, head, factors)


def matrix_names(config: LlamaConfig) -> Iterator[str]:
    """Every matrix of the model by name, in the order of the layers."""
    yield "embed_tokens"
    for n in range(config.layers):
        yield from (f"layers.{n}.self_attn.{part}_proj" for part in "qkvo")
        yield from (f"layers.{n}.mlp.{part}_proj" for part in ("gate", "up", "down"))
    if not config.is_tied:
        yield "lm_head"


def matrix_shape(config: LlamaConfig, name: str) -> tuple[int, int]:
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    shapes = {
        "q_proj": (queries, config.hidden),
        "k_proj": (keys, config.hidden),
        "v_proj": (keys, config.hidden),
        "o_proj": (config.hidden, queries),
        "gate_proj": (config.feed_forward, config.hidden),
        "up_proj": (config.feed_forward, config.hidden),
        "down_proj": (config.hidden, config.feed_forward),
    }
    return shapes.get(name.rpartition(".")[2], (config.vocabulary, config.hidden))


def _ends(
    checkpoint: Checkpoint, config: LlamaConfig, numerics: Numerics, convert: Convert
) -> tuple[torch.Tensor, Linear]:
    embedding = checkpoint.matrix("embed_tokens", config.vocabulary, config.hidden)
    table = embedding.values if isinstance(embedding, Plain) else embedding.to_float()
    name = "embed_tokens" if config.is_tied and "lm_head" not in checkpoint else "lm_head"
    head = embedding if name == "embed_tokens" else checkpoint.matrix(name, config.vocabulary, config.hidden)
    return table, make_linear([convert("lm_head", head)], numerics)


def _layer(
    checkpoint: Checkpoint, config: LlamaConfig, numerics: Numerics, convert: Convert, number: int
) -> LayerWeights:
    prefix, hidden, size = f"layers.{number}.", config.hidden, config.head_size

    def matrix(part: str, turned_heads: int = 0) -> Matrix:
        name = f"{prefix}{part}"
        stored = checkpoint.matrix(name, *matrix_shape(config, name))
        if turned_heads and not checkpoint.rotates_pairs:
            stored = stored.rows(pair_order(turned_heads, size))
        return convert(name, stored)

    def head_vector(part: str, heads: int, *, is_turned: bool = True) -> torch.Tensor:
        values = checkpoint.vector(f"{prefix}self_attn.{part}", heads * size)
        return values[pair_order(heads, size)] if is_turned and not checkpoint.rotates_pairs else values

    bias = None
    if config.has_bias:
        queries, keys = head_vector("q_proj.bias", config.heads), head_vector("k_proj.bias", config.kv_heads)
        bias = torch.cat([queries, keys, head_vector("v_proj.bias", config.kv_heads, is_turned=False)])
    return LayerWeights(
        attention_norm=checkpoint.vector(f"{prefix}input_layernorm", hidden),
        query_key_value=make_linear(
            [
                matrix("self_attn.q_proj", config.heads),
                matrix("self_attn.k_proj", config.kv_heads),
                matrix("self_attn.v_proj"),
            ],
            numerics,
        ),
        query_key_value_bias=bias,
        query_norm=head_vector("q_norm", 1) if config.has_head_norm else None,
        key_norm=head_vector("k_norm", 1) if config.has_head_norm else None,
        attention_output=make_linear([matrix("self_attn.o_proj")], numerics),
        feed_forward_norm=checkpoint.vector(f"{prefix}post_attention_layernorm", hidden),
        gate_up=make_linear([matrix("mlp.gate_proj"), matrix("mlp.up_proj")], numerics),
        down=make_linear([matrix("mlp.down_proj")], numerics),
    )


def pair_order(heads: int, size: int) -> torch.Tensor:
    """Rows of heads that rotate dimension j with j + size / 2, in the order that rotates (0, 1), (2, 3), …"""
    within = torch.arange(size).view(2, size // 2).T.flatten()
    return (torch.arange(heads)[:, None] * size + within).flatten()


def _rope_factors(checkpoint: Checkpoint, config: LlamaConfig) -> torch.Tensor:
    """Of the configuration and, in files that have them, of a tensor."""
    factors = torch.tensor(config.rope.factors)
    return factors * checkpoint.vector("rope_freqs", len(factors)) if "rope_freqs" in checkpoint else factors

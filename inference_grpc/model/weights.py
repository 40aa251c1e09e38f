"""The weights of a Llama-like model out of a GGUF file: checked for shape and completeness, packed for the forward."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from inference_grpc.model.config import LlamaConfig
from inference_grpc.model.gguf import GgufError, GgufFile
from inference_grpc.model.linear import Linear, Precision, make_product


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: torch.Tensor
    query_key_value: Linear  # rows: queries, keys, values
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


def load_weights(file: GgufFile, config: LlamaConfig, precision: Precision) -> LlamaWeights:
    """Raises `GgufError` naming the tensor that is missing, of the wrong shape, or would be left unused."""
    _check_names(file, config)

    def tensor(name: str, *shape: int) -> torch.Tensor:
        return torch.from_numpy(file.read(name, shape))

    def layer(index: int) -> LayerWeights:
        prefix = f"blk.{index}."
        hidden, inner = config.hidden, config.feed_forward
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        query = tensor(f"{prefix}attn_q.weight", queries, hidden)
        key = tensor(f"{prefix}attn_k.weight", keys, hidden)
        value = tensor(f"{prefix}attn_v.weight", keys, hidden)
        gate = tensor(f"{prefix}ffn_gate.weight", inner, hidden)
        up = tensor(f"{prefix}ffn_up.weight", inner, hidden)
        return LayerWeights(
            attention_norm=tensor(f"{prefix}attn_norm.weight", hidden),
            query_key_value=make_product(torch.cat([query, key, value]), precision),
            attention_output=make_product(tensor(f"{prefix}attn_output.weight", hidden, queries), precision),
            feed_forward_norm=tensor(f"{prefix}ffn_norm.weight", hidden),
            gate_up=make_product(torch.cat([gate, up]), precision),
            down=make_product(tensor(f"{prefix}ffn_down.weight", hidden, inner), precision),
        )

    def ends() -> tuple[torch.Tensor, Linear]:
        embedding = tensor("token_embd.weight", config.vocabulary, config.hidden)
        is_tied = "output.weight" not in file.tensors
        head = embedding if is_tied else tensor("output.weight", config.vocabulary, config.hidden)
        return embedding, make_product(head, precision)

    # Dequantizing and packing release the interpreter lock, and a start waits for nothing else.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as workers:
        ends_future = workers.submit(ends)
        layers = list(workers.map(layer, range(config.layers)))
        embedding, head = ends_future.result()
    factors = torch.ones(config.head_size // 2)
    if "rope_freqs.weight" in file.tensors:
        factors = tensor("rope_freqs.weight", config.head_size // 2)
    return LlamaWeights(embedding, layers, tensor("output_norm.weight", config.hidden), head, factors)


def _check_names(file: GgufFile, config: LlamaConfig) -> None:
    """A tensor that the forward pass would not read means a model that it would compute wrongly."""
    unused = file.tensors.keys() - set(_known_names(config))
    if unused:
        raise GgufError(
            f"{file.path}: tensor {min(unused)!r} has no place in a llama model of {config.layers} layers as this "
            f"engine runs it ({len(unused)} such tensors); the model needs something that is not supported."
        )


def _known_names(config: LlamaConfig) -> Iterator[str]:
    yield from ("token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight")
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    for index in range(config.layers):
        yield from (f"blk.{index}.{part}.weight" for part in parts)

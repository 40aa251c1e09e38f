"""What a model will take on a device, from its configuration and the headers of its files, before anything is loaded.

Weights are counted as they will be held: on a CPU as float16 (linear.py), on a GPU in the formats that its kernels read
(cuda/matrices.py). What comes beside them, such as norms and the packing of one layer at a time, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inference_grpc.model.checkpoint import MatrixSize
from inference_grpc.model.config import LlamaConfig
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from inference_grpc.model.load import Opened, matrix_names
from inference_grpc.model.memory import KvFormat
from inference_grpc.model.recipe import Recipe
from kernels.hybrid_step import RING

# Bytes of a weight on a GPU, with its share of scales; every other format becomes bfloat16 there.
_ON_GPU: Final[Mapping[str, float]] = {"nvfp4": 0.5625, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class CacheSize:
    token_bytes: int  # keys and values of one token, over all layers; in FP8, where the cache has two stages
    state_bytes: int  # of one slot; 0: no recurrent state


def weight_bytes(opened: Opened, recipe: Recipe, device: str) -> int:
    """Raises `ModelFileError` naming a tensor that is missing."""
    total = 0.0
    for name in matrix_names(opened):
        size = opened.checkpoint.size(name)
        if name == "embed_tokens":
            total += _table_bytes(size, recipe, device)
        if name != "embed_tokens" or opened.config.is_tied:  # then it is the head as well
            total += _matrix_bytes(size, recipe, name, device)
    return int(total)


def _table_bytes(size: MatrixSize, recipe: Recipe, device: str) -> float:
    """On a CPU as it is stored, if that is a type of torch's; on a GPU FP8 or bfloat16."""
    values = size.rows * size.columns
    if device == "cpu":
        return size.nbytes if size.format in ("f32", "f16", "bf16") else 4 * values
    return values * (1.0 if _wanted(size, recipe, "embed_tokens") == "fp8" else 2.0)


def _matrix_bytes(size: MatrixSize, recipe: Recipe, name: str, device: str) -> float:
    values = size.rows * size.columns
    return 2.0 * values if device == "cpu" else values * _ON_GPU.get(_wanted(size, recipe, name), 2.0)


def _wanted(size: MatrixSize, recipe: Recipe, name: str) -> str:
    wanted = recipe.format_of(name)
    return size.format if wanted == "keep" else wanted


def cache_size(config: LlamaConfig | HybridConfig, kv: KvFormat, device: str) -> CacheSize:
    """As the models themselves say once they are there (`page_token_bytes`, `state_bytes`)."""
    width = 1 if kv != "float32" else 2 if device == "cuda" else 4
    if isinstance(config, LlamaConfig):
        return CacheSize(config.layers * 2 * config.kv_heads * config.head_size * width, 0)
    layers = config.full_layers + (config.mtp_layers if device == "cpu" else 0)
    states = 4 * config.value_heads * config.key_size * config.value_size
    inputs = 2 * RING * config.conv_channels if device == "cuda" else 4 * (CONV_TAPS - 1) * config.conv_channels
    carried = 0 if device == "cuda" else 4 * config.hidden
    return CacheSize(
        layers * 2 * config.kv_heads * config.head_size * width, config.linear_layers * (states + inputs) + carried
    )

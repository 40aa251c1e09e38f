"""The forward pass of a Llama-like model: one step of many sequences over paged memory, as one flat list of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import rms_norm, silu

from inference_grpc.core.batch import Batch
from inference_grpc.model.attention import SPAN_TOKENS, attend, make_plan
from inference_grpc.model.config import LlamaConfig, read_config
from inference_grpc.model.gguf import GgufFile
from inference_grpc.model.linear import Precision, rows_are_independent
from inference_grpc.model.memory import KvPool
from inference_grpc.model.weights import LayerWeights, LlamaWeights, load_weights


class LlamaModel:
    """Implements `interface.Model`."""

    device = "cpu"
    block_tokens = 1
    state_bytes = 0

    def __init__(self, name: str, config: LlamaConfig, weights: LlamaWeights, precision: Precision) -> None:
        self.name = name
        self.config = config
        self.vocabulary = config.vocabulary
        self.context_tokens = config.context_tokens
        self.precision: str = precision
        self._weights = weights
        self._rotations = _rotations(config, weights.rope_factors)
        self._pools: list[KvPool] = []
        self._page_tokens = 0
        self._padding_page = 0

    def is_batch_invariant(self) -> bool:
        """Whether this machine's kernels keep rows apart (linear.py); milliseconds, asked once at start."""
        return rows_are_independent(self._weights.layers[0].query_key_value, self.config.hidden)

    @property
    def page_token_bytes(self) -> int:
        return 4 * self.config.layers * 2 * self.config.kv_heads * self.config.head_size

    def allocate(self, *, pages: int, page_tokens: int, state_slots: int = 0) -> None:
        if SPAN_TOKENS % page_tokens and page_tokens % SPAN_TOKENS:
            raise ValueError(f"page_tokens is {page_tokens}; it must divide {SPAN_TOKENS} or be a multiple of it.")
        self._page_tokens = page_tokens
        values = 2 * self.config.kv_heads * self.config.head_size
        self._pools = [KvPool(pages=pages, page_tokens=page_tokens, values=values) for _ in range(self.config.layers)]
        self._padding_page = pages

    @torch.inference_mode()
    def clear_pages(self, page_ids: Sequence[int]) -> None:
        for pool in self._pools:
            pool.clear(page_ids)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        for move in batch.moves:
            for pool in self._pools:
                pool.copy(move.source, move.target)
        plan = make_plan(batch, page_tokens=self._page_tokens, padding_page=self._padding_page)
        config, weights = self.config, self._weights
        size, epsilon = config.head_size, config.norm_epsilon
        rotation = self._rotations[plan.positions][:, None, :]  # [rows, 1, size / 2]
        rows = plan.token_ids.shape[0]

        x = weights.embedding[plan.token_ids]  # [rows, hidden]
        for layer, pool in zip(weights.layers, self._pools, strict=True):
            normed = rms_norm(x, (config.hidden,), layer.attention_norm, epsilon)
            heads = layer.query_key_value(normed).view(rows, -1, size)  # queries, keys, values
            rotated = heads[:, : config.heads + config.kv_heads]
            torch.view_as_complex(rotated.view(rows, -1, size // 2, 2)).mul_(rotation)
            pool.write(plan.slots, heads[:, config.heads :].flatten(1))
            queries = heads[:, : config.heads].view(rows, config.kv_heads, -1, size)
            x += layer.attention_output(attend(queries, pool, plan.groups))
            x += _feed_forward(rms_norm(x, (config.hidden,), layer.feed_forward_norm, epsilon), layer)

        last = rms_norm(x[plan.sampling_rows], (config.hidden,), weights.output_norm, epsilon)
        return weights.head(last)


def _feed_forward(x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(silu(gate).mul_(up))


def _rotations(config: LlamaConfig, factors: torch.Tensor) -> torch.Tensor:
    """complex64 [context, head size / 2]. A GGUF orders the rows of Q and K so that (0, 1), (2, 3), … are the pairs."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    frequencies = config.rope_base**-exponents / factors.double() / config.rope_scale
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float64), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def load_llama(path: Path, *, name: str, precision: Precision) -> tuple[LlamaModel, GgufFile]:
    """The model and its file, from which the tokenizer and the chat template are read."""
    file = GgufFile(path)
    config = read_config(file)
    return LlamaModel(name, config, load_weights(file, config, precision), precision), file

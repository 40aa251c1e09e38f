"""The forward pass of a Llama-like model: one step of many sequences over paged memory, as one flat list of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import silu

from inference_grpc.core.batch import Batch
from inference_grpc.core.staged import StagedPages
from inference_grpc.model.attention import KEPT_BYTES, SPAN_TOKENS, StepPlan, attend, make_plan
from inference_grpc.model.config import LlamaConfig
from inference_grpc.model.linear import rows_are_independent
from inference_grpc.model.memory import KvFormat, KvPool, three_bit_bytes
from inference_grpc.model.norm import RmsNorm
from inference_grpc.model.staged import StagedPool, kv_pool
from inference_grpc.model.weights import LayerWeights, LlamaWeights
from kernels.paged_attention.stage import Staging


class LlamaModel:
    """Implements `interface.Model`."""

    device = "cpu"
    block_tokens = 1
    verifies_drafts = True
    state_bytes = 0

    def __init__(
        self,
        name: str,
        config: LlamaConfig,
        weights: LlamaWeights,
        *,
        precision: str,
        vocabulary: int | None = None,
        kv_format: KvFormat = "float32",
        staging: Staging | None = None,
    ) -> None:
        """`vocabulary`: the tokens that exist; rows of the head above it are padding and never become a token."""
        self.name = name
        self.config = config
        self.vocabulary = vocabulary or config.vocabulary
        self.context_tokens = config.context_tokens
        self.precision = precision
        self._kv_format: KvFormat = kv_format
        self.staging = staging
        self._weights = weights
        self._norm = RmsNorm(config.hidden, config.norm_epsilon)
        self._head_norm = RmsNorm(config.head_size, config.norm_epsilon)
        self._rotations = _rotations(config, weights.rope_factors)
        self._pools: list[KvPool | StagedPool] = []
        self._page_tokens = 0
        self._padding_page = 0
        self._plan: StepPlan | None = None  # of the last step

    def is_batch_invariant(self) -> bool:
        """Whether this machine's kernels keep rows apart (linear.py); milliseconds, asked once at start."""
        return rows_are_independent(self._weights.layers[0].query_key_value, self.config.hidden)

    @property
    def page_token_bytes(self) -> int:
        return self._token_values * (4 if self._kv_format == "float32" else 1)

    @property
    def three_bit_token_bytes(self) -> int:
        return three_bit_bytes(self._token_values, self.config.head_size)

    @property
    def _token_values(self) -> int:
        return self.config.layers * 2 * self.config.kv_heads * self.config.head_size

    def allocate(
        self,
        *,
        pages: int,
        page_tokens: int,
        state_slots: int = 0,
        host_pages: int = 0,
        host_states: int = 0,
        staged: StagedPages | None = None,
    ) -> None:
        if SPAN_TOKENS % page_tokens and page_tokens % SPAN_TOKENS:
            raise ValueError(f"page_tokens is {page_tokens}; it must divide {SPAN_TOKENS} or be a multiple of it.")
        self._page_tokens = page_tokens
        self._pools = [
            kv_pool(
                pages=pages,
                page_tokens=page_tokens,
                kv_heads=self.config.kv_heads,
                head_size=self.config.head_size,
                stored=self._kv_format,
                host_pages=host_pages,
                staged=staged,
            )
            for _ in range(self.config.layers)
        ]
        self._padding_page = pages

    @torch.inference_mode()
    def clear_pages(self, page_ids: Sequence[int]) -> None:
        for pool in self._pools:
            pool.clear(page_ids)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        for move in batch.moves:
            for pool in self._pools:
                pool.move(move)
        plan = self._plan = make_plan(
            batch,
            page_tokens=self._page_tokens,
            padding_page=self._padding_page,
            last=self._plan,
            kept_tokens=KEPT_BYTES // (4 * self._token_values),
        )
        config, weights = self.config, self._weights
        size, norm = config.head_size, self._norm
        rotation = self._rotations[plan.positions][:, None, :]  # [rows, 1, size / 2]
        rows = plan.token_ids.shape[0]

        x = weights.embedding[plan.token_ids].float()  # [rows, hidden]
        for layer, pool in zip(weights.layers, self._pools, strict=True):
            normed = norm(x, layer.attention_norm)
            projected = layer.query_key_value(normed)
            if layer.query_key_value_bias is not None:
                projected += layer.query_key_value_bias
            heads = projected.view(rows, -1, size)  # queries, keys, values
            if layer.query_norm is not None and layer.key_norm is not None:
                heads = self._norm_heads(heads, layer.query_norm, layer.key_norm)
            rotated = heads[:, : config.heads + config.kv_heads]
            torch.view_as_complex(rotated.view(rows, -1, size // 2, 2)).mul_(rotation)
            pool.write(plan.slots, heads[:, config.heads :].flatten(1))
            queries = heads[:, : config.heads].view(rows, config.kv_heads, -1, size)
            x += layer.attention_output(attend(queries, pool, plan))
            x += _feed_forward(norm(x, layer.feed_forward_norm), layer)

        last = norm(x[plan.sampling_rows], weights.output_norm)
        return weights.head(last)[:, : self.vocabulary]

    def _norm_heads(self, heads: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        queries, keys = self.config.heads, self.config.heads + self.config.kv_heads
        q, k, v = heads[:, :queries], heads[:, queries:keys], heads[:, keys:]
        return torch.cat([self._head_norm(q, query), self._head_norm(k, key), v], dim=1)


def _feed_forward(x: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(silu(gate).mul_(up))


def _rotations(config: LlamaConfig, factors: torch.Tensor) -> torch.Tensor:
    """complex64 [context, head size / 2]. Queries and keys are ordered so that (0, 1), (2, 3), … are the pairs."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    frequencies = config.rope_base**-exponents / factors.double()
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float64), frequencies)
    return torch.polar(torch.full_like(angles, config.rope.magnitude), angles).to(torch.complex64)

"""A step's ragged rows, layer by layer: prompts always, and decoding too where the fused step is off.

Plain PyTorch in float32, with what is faster in its place where its gate has passed: norms, the convolution and the
chunked rule through Triton, the decode step's kernels around flash attention, products in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference_grpc.core.batch import Chunk
from inference_grpc.model.cuda.matrices import steady_product
from inference_grpc.model.cuda.memory import DeviceMemory, write_rows
from inference_grpc.model.cuda.spans import SpanGroup, span_groups
from inference_grpc.model.cuda.weights import AttentionMatrices, DeltaMatrices, DeviceWeights
from inference_grpc.model.hybrid_config import HybridConfig
from kernels.causal_conv1d import reference as conv_reference
from kernels.gated_delta_rule import reference as delta_reference
from kernels.gated_delta_rule.chunk import chunked, gates
from kernels.hybrid_step import AttentionLayer, DeltaLayer, DeltaMemory
from kernels.page_spans import reference as spans_reference
from kernels.page_spans.gather import gather
from kernels.paged_attention.cache import PageMemory
from kernels.paged_attention.prefill import attend_flash, attend_masked
from kernels.paged_attention.stage import Staging
from kernels.paths import Choice
from kernels.ragged import Ragged, make_ragged
from kernels.rotary.reference import rotary
from kernels.turboquant.reference import rotation
from kernels.turboquant.rotate import constants, rotate


@dataclass(frozen=True, slots=True)
class RaggedPlan:
    """Rows of the chunks one after another, and where they lie in memory."""

    rows: list[slice]  # of each chunk
    token_ids: torch.Tensor  # int64 [R]
    positions: torch.Tensor  # int64 [R]
    pages: torch.Tensor  # int64 [R]: the page of each row
    offsets: torch.Tensor  # int64 [R]
    held: list[torch.Tensor]  # int64, a chunk: pages of everything up to its end, NO_PAGE where they are in three bits
    ragged: Ragged
    spans: list[SpanGroup]


def make_ragged_plan(
    chunks: list[Chunk], page_tokens: int, device: torch.device, rule: Staging | None = None
) -> RaggedPlan:
    def on_device(values: list[int]) -> torch.Tensor:
        # Nobody waits: where sequences decode in the same step, the device is at it now.
        return torch.tensor(values).to(device, non_blocking=True)

    token_ids: list[int] = []
    positions: list[int] = []
    pages: list[int] = []
    start, rows, held, slots = 0, [], [], []
    for chunk in chunks:
        sequence = chunk.sequence
        assert sequence.state_slot is not None, "a running sequence of a model with state has a slot"
        token_ids += sequence.token_ids[chunk.start : chunk.end]
        positions += range(chunk.start, chunk.end)
        pages += [sequence.page_ids[p // page_tokens] for p in range(chunk.start, chunk.end)]
        held.append(on_device(sequence.page_ids[: -(-chunk.end // page_tokens)]))
        slots.append(sequence.state_slot)
        rows.append(slice(start, start := len(token_ids)))
    where = on_device(positions)
    return RaggedPlan(
        rows=rows,
        token_ids=on_device(token_ids),
        positions=where,
        pages=on_device(pages),
        offsets=where % page_tokens,
        held=held,
        ragged=make_ragged(
            [chunk.count for chunk in chunks],
            slots,
            [chunk.start for chunk in chunks],
            device,
            kept=[{at - chunk.start: slot for at, slot in chunk.kept.items()} for chunk in chunks],
        ),
        spans=span_groups(chunks, page_tokens, rule, device),
    )


class RaggedForward:
    def __init__(
        self,
        config: HybridConfig,
        weights: DeviceWeights,
        memory: DeviceMemory,
        ways: Choice,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> None:
        self._config, self._weights, self._memory = config, weights, memory
        self._cos, self._sin = cos, sin
        # By vector, so that its bits do not depend on how many there are; plain PyTorch multiplies all at once.
        self._turn = None if "paged" in ways else rotation(config.head_size, memory.device)
        self._is_chunked = "chunked" in ways
        self._is_paged = "paged" in ways and "flash" in ways
        self._is_steady = weights.head.is_invariant and "packed" not in ways
        # What products with packed matrices round rows to.
        self._rows_type = torch.bfloat16 if "packed" in ways else torch.float32

    def __call__(self, chunks: list[Chunk]) -> torch.Tensor:
        """Logits float32 [chunks, rows of the head] of the last row of each chunk; brings pages and states forward."""
        plan = make_ragged_plan(chunks, self._memory.page_tokens, self._memory.device, self._memory.staging)
        trunk = self._weights.trunk
        h = trunk.embedding.rows(plan.token_ids)
        change: torch.Tensor | None = None
        for layer, held, memory in zip(trunk.layers, self._weights.layers, self._memory.layers, strict=True):
            x, h = self._add(h, change, layer.input_norm)
            if isinstance(layer.mixer, DeltaLayer):
                assert isinstance(held.mixer, DeltaMatrices)
                assert isinstance(memory, DeltaMemory)
                change = self._delta_net(x, layer.mixer, held.mixer, memory, plan)
            else:
                assert isinstance(held.mixer, AttentionMatrices)
                assert isinstance(memory, PageMemory)
                change = self._attention(x, layer.mixer, held.mixer, memory, plan)
            x, h = self._add(h, change, layer.post_norm)
            change = held.down.product(held.gate_up.silu_mul(x))
        self._memory.count_saturated(plan.pages, plan.offsets)
        assert change is not None, "a model has layers"
        ends = plan.ragged.starts[1:].long() - 1
        return self._weights.head.few(self._norm(h[ends] + change[ends], trunk.norm))

    def _add(
        self, h: torch.Tensor, change: torch.Tensor | None, centred: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """h + change under a norm, and itself."""
        if self._is_chunked:
            from kernels.rms_norm.norm import rms_norm

            epsilon, dtype = self._config.norm_epsilon, self._rows_type
            if change is None:
                return rms_norm(h, centred, epsilon, dtype=dtype)
            return rms_norm(change.contiguous(), centred, epsilon, residual=h, dtype=dtype)
        h = h if change is None else h + change
        return self._norm(h, centred), h

    def _norm(self, x: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), 1.0 + centred, self._config.norm_epsilon)

    def _rotate(self, x: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
        if self._turn is not None:
            turn = self._turn.T if inverse else self._turn
            return self._times(x.reshape(-1, x.shape[-1]), turn).view(x.shape)
        return rotate(x, inverse=inverse)

    def _times(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """x wᵀ of [R, columns] and [rows, columns]."""
        return steady_product(x, w) if self._is_steady else x @ w.T

    def _delta_net(
        self, x: torch.Tensor, layer: DeltaLayer, held: DeltaMatrices, memory: DeltaMemory, plan: RaggedPlan
    ) -> torch.Tensor:
        config, rows = self._config, x.shape[0]
        heads, channels, values = config.value_heads, config.conv_channels, config.value_channels
        mixed = held.inward.product(x)
        small = mixed[:, channels + values :] if held.gates is None else self._times(x.to(held.gates.dtype), held.gates)
        z = mixed[:, channels : channels + values].view(rows, heads, config.value_size)
        if not self._is_chunked:
            b, a = torch.split(small.float(), heads, dim=1)
            g, beta = delta_reference.gates(a, b, layer.a_log, layer.dt_bias)
            convolved = conv_reference.causal_conv1d(mixed[:, :channels], layer.conv, memory.ring, plan.ragged)
            q, k, v = self._heads(convolved)
            q, k = delta_reference.normalise(q, k)
            out = delta_reference.chunked_ragged(q, k, v, g, beta, memory.state, plan.ragged)
            normed = delta_reference.gated_norm(out, z.float(), layer.norm, config.norm_epsilon)
        else:
            from kernels.causal_conv1d.conv import causal_conv1d
            from kernels.rms_norm.norm import gated_rms_norm

            g, beta = gates(small, layer.a_log, layer.dt_bias)
            qk_heads = config.key_heads, config.key_size
            convolved = causal_conv1d(
                mixed, layer.conv, memory.ring, plan.ragged, heads=qk_heads, dtype=self._rows_type
            )
            q, k, v = self._heads(convolved)
            out = chunked(q, k, v, g, beta, memory.state, plan.ragged)
            normed = gated_rms_norm(out, z, layer.norm, config.norm_epsilon, dtype=self._rows_type)
        return held.outward.product(normed.view(rows, -1))

    def _heads(self, convolved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of rows after the convolution."""
        config, keys = self._config, self._config.key_channels
        q, k, v = convolved[:, :keys], convolved[:, keys : 2 * keys], convolved[:, 2 * keys :]
        rows = len(convolved)
        return (
            q.view(rows, -1, config.key_size),
            k.view(rows, -1, config.key_size),
            v.view(rows, -1, config.value_size),
        )

    def _attention(
        self, x: torch.Tensor, layer: AttentionLayer, held: AttentionMatrices, memory: PageMemory, plan: RaggedPlan
    ) -> torch.Tensor:
        config, rows, size = self._config, x.shape[0], self._config.head_size
        wide = config.kv_heads * size
        if self._is_paged:
            return held.outward.product(self._attended(held.inward.product(x).contiguous(), layer, memory, plan))
        projected = held.inward.product(x).float()
        q, gate = projected[:, : -2 * wide].view(rows, config.heads, 2, size).unbind(2)
        keys = projected[:, -2 * wide : -wide].view(rows, config.kv_heads, size)
        values = projected[:, -wide:].view(rows, config.kv_heads, size)
        q = self._rotate(rotary(self._norm(q, layer.q_norm), plan.positions, self._cos, self._sin))
        keys = self._rotate(rotary(self._norm(keys, layer.k_norm), plan.positions, self._cos, self._sin))
        write_rows(memory.keys, plan.pages, plan.offsets, keys)
        write_rows(memory.values, plan.pages, plan.offsets, self._rotate(values))
        parts = []
        for group in plan.spans:
            span = spans_reference.gather(memory, group.table, group.tokens, torch.float32)
            seen = [torch.split(x, [piece.tokens for piece in group.pieces]) for x in span]
            parts += [attend_masked(q[piece.rows], k, v) for piece, k, v in zip(group.pieces, *seen, strict=True)]
        attended = self._rotate(torch.cat(parts), inverse=True)
        return held.outward.product((attended * torch.sigmoid(gate)).view(rows, -1))

    def _attended(
        self, mixed: torch.Tensor, layer: AttentionLayer, memory: PageMemory, plan: RaggedPlan
    ) -> torch.Tensor:
        """The same between its products by the kernels of the decode step, around flash attention; bfloat16."""
        from kernels.paged_attention.device import leave_kernel, prepare_kernel

        config, size, device = self._config, self._config.head_size, mixed.device
        sign, small = constants(size, device)
        shape = {"HEADS": config.heads, "SIZE": size, "ROOT": small.shape[0]}
        rows = mixed.shape[0]
        q = torch.empty(rows, config.heads, size, dtype=torch.bfloat16, device=device)
        for at, page_ids in zip(plan.rows, plan.held, strict=True):
            # Each row as a sequence of its own, all of them with the chunk's block table.
            prepare_kernel[(at.stop - at.start, config.heads + 2 * config.kv_heads)](
                mixed[at],
                layer.q_norm,
                layer.k_norm,
                self._cos,
                self._sin,
                sign,
                small,
                plan.positions[at],
                page_ids,
                q[at],
                memory.keys,
                memory.values,
                1,
                0,
                rows,
                PARTS=1,
                KV_HEADS=config.kv_heads,
                HALF=self._cos.shape[1],
                PAGE=self._memory.page_tokens,
                OVERLAP=False,
                num_warps=2,
                **shape,
            )
        parts = [
            attend_flash(
                q[group.rows],
                *gather(memory, group.table, group.tokens),
                group.q_starts,
                group.key_starts,
                group.most_rows,
                group.most_tokens,
            )
            for group in plan.spans
        ]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        out = torch.empty(rows, config.heads * size, dtype=torch.bfloat16, device=device)
        leave_kernel[(rows, config.heads)](attended, mixed, sign, small, out, mixed.shape[1], num_warps=2, **shape)
        return out

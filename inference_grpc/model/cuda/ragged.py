"""A step's ragged rows, layer by layer: prompts always, and decoding too where the fused step is off.

Plain PyTorch in float32, with what is faster in its place where its gate has passed: the chunked rule and the
convolution through Triton, flash attention, products in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inference_grpc.core.batch import Chunk
from inference_grpc.model.cuda.memory import DeviceMemory, gather, write_rows
from inference_grpc.model.cuda.weights import AttentionMatrices, DeltaMatrices, DeviceWeights
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from kernels.causal_conv1d import reference as conv_reference
from kernels.gated_delta_rule.reference import chunked_ragged, gated_norm, gates, normalise
from kernels.hybrid_step import RING, AttentionLayer, DeltaLayer, DeltaMemory, PageMemory
from kernels.paged_attention.prefill import attend_flash, attend_masked
from kernels.paths import Choice
from kernels.rotary.reference import rotary
from kernels.turboquant.reference import rotation
from kernels.turboquant.rotate import rotate

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RaggedPlan:
    """Rows of the chunks one after another, and where they lie in memory."""

    chunks: list[Chunk]
    rows: list[slice]
    token_ids: torch.Tensor  # int64 [R]
    positions: torch.Tensor  # int64 [R]
    pages: torch.Tensor  # int64 [R]: the page of each row
    offsets: torch.Tensor  # int64 [R]
    held: list[torch.Tensor]  # int64, a chunk: pages of everything up to its end
    slots: torch.Tensor  # int64 [chunks]
    starts: torch.Tensor  # int32 [chunks + 1]
    before: torch.Tensor  # int64 [chunks, 3]: places in the ring of the inputs before each chunk
    last: torch.Tensor  # int64 [chunks, 3]: places of its last inputs
    longest: int


def make_ragged_plan(chunks: list[Chunk], page_tokens: int, device: torch.device) -> RaggedPlan:
    token_ids: list[int] = []
    positions: list[int] = []
    pages: list[int] = []
    starts, rows, held, slots = [0], [], [], []
    for chunk in chunks:
        sequence = chunk.sequence
        assert sequence.state_slot is not None, "a running sequence of a model with state has a slot"
        token_ids += sequence.token_ids[chunk.start : chunk.end]
        positions += range(chunk.start, chunk.end)
        pages += [sequence.page_ids[p // page_tokens] for p in range(chunk.start, chunk.end)]
        held.append(torch.tensor(sequence.page_ids[: -(-chunk.end // page_tokens)], device=device))
        slots.append(sequence.state_slot)
        starts.append(len(token_ids))
        rows.append(slice(starts[-2], starts[-1]))
    where = torch.tensor(positions, device=device)
    back = torch.arange(1 - CONV_TAPS, 0, device=device)

    def ring(ends: list[int]) -> torch.Tensor:
        return (torch.tensor(ends, device=device)[:, None] + back) % RING

    return RaggedPlan(
        chunks=chunks,
        rows=rows,
        token_ids=torch.tensor(token_ids, device=device),
        positions=where,
        pages=torch.tensor(pages, device=device),
        offsets=where % page_tokens,
        held=held,
        slots=torch.tensor(slots, device=device),
        starts=torch.tensor(starts, dtype=torch.int32, device=device),
        before=ring([chunk.start for chunk in chunks]),
        last=ring([chunk.end for chunk in chunks]),
        longest=max(chunk.count for chunk in chunks),
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
        self._attend: Attend = attend_flash if "flash" in ways else attend_masked
        self._gathered = torch.bfloat16 if "flash" in ways else torch.float32
        self._is_chunked = "chunked" in ways

    def __call__(self, chunks: list[Chunk]) -> torch.Tensor:
        """Logits float32 [chunks, rows of the head] of the last row of each chunk; brings pages and states forward."""
        plan = make_ragged_plan(chunks, self._memory.page_tokens, self._memory.device)
        trunk = self._weights.trunk
        h = trunk.embedding[plan.token_ids].float()
        for layer, held, memory in zip(trunk.layers, self._weights.layers, self._memory.layers, strict=True):
            x = self._norm(h, layer.input_norm)
            if isinstance(layer.mixer, DeltaLayer):
                assert isinstance(held.mixer, DeltaMatrices)
                assert isinstance(memory, DeltaMemory)
                h = h + self._delta_net(x, layer.mixer, held.mixer, memory, plan)
            else:
                assert isinstance(held.mixer, AttentionMatrices)
                assert isinstance(memory, PageMemory)
                h = h + self._attention(x, layer.mixer, held.mixer, memory, plan)
            h = h + held.down.product(held.gate_up.silu_mul(self._norm(h, layer.post_norm)))
        ends = self._norm(h[plan.starts[1:].long() - 1], trunk.norm)
        return self._weights.head.few(ends)

    def _norm(self, x: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), 1.0 + centred, self._config.norm_epsilon)

    def _rotate(self, x: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
        if self._turn is not None:
            return x @ (self._turn if inverse else self._turn.T)
        return rotate(x, inverse=inverse)

    def _delta_net(
        self, x: torch.Tensor, layer: DeltaLayer, held: DeltaMatrices, memory: DeltaMemory, plan: RaggedPlan
    ) -> torch.Tensor:
        config, rows = self._config, x.shape[0]
        heads, channels, values = config.value_heads, config.conv_channels, config.value_channels
        mixed = held.inward.product(x)
        small = mixed[:, channels + values :] if held.gates is None else x.to(held.gates.dtype) @ held.gates.T
        g, beta = gates(small[:, heads:].float(), small[:, :heads].float(), layer.a_log, layer.dt_bias)
        inputs = mixed[:, :channels].to(memory.ring.dtype).float().contiguous()
        history = memory.ring[plan.slots[:, None], plan.before].float()
        if self._is_chunked:
            from kernels.causal_conv1d.conv import causal_conv1d

            convolved, kept = causal_conv1d(inputs, layer.conv, history, plan.starts, longest=plan.longest)
        else:
            convolved, kept = conv_reference.causal_conv1d(inputs, layer.conv, history, plan.starts)
        memory.ring[plan.slots[:, None], plan.last] = kept.to(memory.ring.dtype)

        keys = config.key_channels
        q, k, v = convolved[:, :keys], convolved[:, keys : 2 * keys], convolved[:, 2 * keys :]
        q, k = normalise(
            q.reshape(rows, config.key_heads, config.key_size), k.reshape(rows, config.key_heads, config.key_size)
        )
        v = v.reshape(rows, heads, config.value_size)
        arguments = q.contiguous(), k.contiguous(), v.contiguous(), g, beta, memory.state[plan.slots], plan.starts
        if self._is_chunked:
            from kernels.gated_delta_rule.chunk import chunked

            out, last = chunked(*arguments)
        else:
            out, last = chunked_ragged(*arguments)
        memory.state[plan.slots] = last
        z = mixed[:, channels : channels + values].reshape(rows, heads, config.value_size)
        return held.outward.product(gated_norm(out, z.float(), layer.norm, config.norm_epsilon).view(rows, -1))

    def _attention(
        self, x: torch.Tensor, layer: AttentionLayer, held: AttentionMatrices, memory: PageMemory, plan: RaggedPlan
    ) -> torch.Tensor:
        config, rows, size = self._config, x.shape[0], self._config.head_size
        wide = config.kv_heads * size
        projected = held.inward.product(x).float()
        q, gate = projected[:, : -2 * wide].view(rows, config.heads, 2, size).unbind(2)
        keys = projected[:, -2 * wide : -wide].view(rows, config.kv_heads, size)
        values = projected[:, -wide:].view(rows, config.kv_heads, size)
        q = self._rotate(rotary(self._norm(q, layer.q_norm), plan.positions, self._cos, self._sin))
        keys = self._rotate(rotary(self._norm(keys, layer.k_norm), plan.positions, self._cos, self._sin))
        write_rows(memory.keys, plan.pages, plan.offsets, keys)
        write_rows(memory.values, plan.pages, plan.offsets, self._rotate(values))
        parts = [
            self._attend(
                q[at].to(self._gathered),
                gather(memory.keys, page_ids, chunk.end, self._gathered),
                gather(memory.values, page_ids, chunk.end, self._gathered),
            )
            for chunk, at, page_ids in zip(plan.chunks, plan.rows, plan.held, strict=True)
        ]
        attended = self._rotate(torch.cat(parts), inverse=True)
        return held.outward.product((attended * torch.sigmoid(gate)).view(rows, -1))

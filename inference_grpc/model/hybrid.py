"""The forward pass of a `qwen3_5` model: Gated DeltaNet and gated attention in turn, over pages and state slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import silu

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.staged import StagedPages
from inference_grpc.model.attention import KEPT_BYTES, SPAN_TOKENS, StepPlan, attend, make_plan
from inference_grpc.model.gated_delta_net import GatedDeltaNetWeights, Round, gated_delta_net, make_rounds, pad_lanes
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from inference_grpc.model.linear import Linear, rows_are_independent
from inference_grpc.model.memory import KvFormat, KvPool, StatePool, copy_place, host_places, three_bit_bytes
from inference_grpc.model.staged import StagedPool, kv_pool
from kernels.paged_attention.stage import Staging
from kernels.rotary.reference import rotary


@dataclass(frozen=True, slots=True)
class GatedAttentionWeights:
    in_projection: Linear  # rows: in each query head its query, then its gate; keys; values
    query_norm: torch.Tensor  # [head size], 1 + w already
    key_norm: torch.Tensor
    out_projection: Linear


@dataclass(frozen=True, slots=True)
class HybridLayer:
    input_norm: torch.Tensor  # [hidden], 1 + w already
    mixer: GatedDeltaNetWeights | GatedAttentionWeights
    post_norm: torch.Tensor
    gate_up: Linear  # rows: gate, up
    down: Linear


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The draft layer: from the hidden state of one token and the next token, the token after that."""

    projection: Linear  # from [normed embedding | normed hidden state]
    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    layer: HybridLayer
    norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class HybridWeights:
    embedding: torch.Tensor
    layers: list[HybridLayer]
    norm: torch.Tensor
    head: Linear
    mtp: MtpWeights | None


class HybridModel:
    """Implements `interface.Model` and `interface.DraftLayerModel`."""

    device = "cpu"
    # Chunks of prompts end at multiples of this, so that a row's bits do not depend on them (gated_delta_net.py).
    block_tokens = SPAN_TOKENS
    verifies_drafts = True

    def __init__(
        self,
        name: str,
        config: HybridConfig,
        weights: HybridWeights,
        *,
        precision: str,
        vocabulary: int | None = None,
        kv_format: KvFormat = "float32",
        staging: Staging | None = None,
    ) -> None:
        """`vocabulary`: the tokens that exist; rows of the head above it are padding and never become a token.
        `staging`: the rule of a cache in two stages."""
        self.name = name
        self.config = config
        self.vocabulary = vocabulary or config.vocabulary
        self.context_tokens = config.context_tokens
        self.precision = precision
        self._weights = weights
        self._kv_format: KvFormat = kv_format
        self.staging = staging
        self._mtp = weights.mtp
        self._frequencies = pad_lanes(config.rope.frequencies(config.rope_base))
        self._pools: list[KvPool | StagedPool | StatePool] = []
        self._mtp_pool: KvPool | StagedPool | None = None
        # By slot: the hidden state, after the final norm, of the last token that was computed. The draft layer's next
        # row needs it, and finds it after a prefix hit as well.
        self._carried = self._host_carried = torch.empty(0)
        self._drafted = torch.empty(0)  # by slot: what the draft layer made of its last draft
        self._page_tokens = self._padding_page = 0
        self._plan: StepPlan | None = None  # of the last step

    @property
    def state_bytes(self) -> int:
        """Of one slot, over all layers."""
        config = self.config
        state = config.value_heads * config.key_size * config.value_size
        conv = (CONV_TAPS - 1) * config.conv_channels
        return 4 * (config.linear_layers * (state + conv) + config.hidden)

    @property
    def page_token_bytes(self) -> int:
        """Keys and values of one token, over all layers and the draft layer."""
        return self._token_values * (4 if self._kv_format == "float32" else 1)

    @property
    def three_bit_token_bytes(self) -> int:
        return three_bit_bytes(self._token_values, self.config.head_size)

    @property
    def _token_values(self) -> int:
        layers = self.config.full_layers + (self._mtp is not None)
        return layers * 2 * self.config.kv_heads * self.config.head_size

    def is_batch_invariant(self) -> bool:
        return rows_are_independent(self._weights.layers[0].gate_up, self.config.hidden)

    def allocate(
        self,
        *,
        pages: int,
        page_tokens: int,
        state_slots: int,
        host_pages: int = 0,
        host_states: int = 0,
        staged: StagedPages | None = None,
    ) -> None:
        if SPAN_TOKENS % page_tokens and page_tokens % SPAN_TOKENS:
            raise ValueError(f"page_tokens is {page_tokens}; it must divide {SPAN_TOKENS} or be a multiple of it.")
        config = self.config
        self._page_tokens, self._padding_page = page_tokens, pages

        def pool() -> KvPool | StagedPool:
            return kv_pool(
                pages=pages,
                page_tokens=page_tokens,
                kv_heads=config.kv_heads,
                head_size=config.head_size,
                stored=self._kv_format,
                host_pages=host_pages,
                staged=staged,
            )

        def state_pool() -> StatePool:
            return StatePool(
                slots=state_slots,
                heads=config.value_heads,
                key_size=config.key_size,
                value_size=config.value_size,
                conv_inputs=CONV_TAPS - 1,
                channels=config.conv_channels,
                host_states=host_states,
            )

        self._pools = [state_pool() if kind == "linear_attention" else pool() for kind in config.layer_kinds]
        if self._mtp is not None:
            self._mtp_pool = pool()
        self._carried = torch.zeros(state_slots + 1, config.hidden)
        self._host_carried = host_places(self._carried, host_states)
        self._drafted = torch.zeros_like(self._carried)

    @torch.inference_mode()
    def clear_pages(self, page_ids: Sequence[int]) -> None:
        for pool in self._kv_pools():
            pool.clear(page_ids)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        self._move(batch)
        plan = self._plan = make_plan(
            batch,
            page_tokens=self._page_tokens,
            padding_page=self._padding_page,
            last=self._plan,
            kept_tokens=KEPT_BYTES // (4 * self._token_values),
        )
        rounds = make_rounds(plan.chunks)
        rotation = self._rotation(plan.positions)
        weights, epsilon = self._weights, self.config.norm_epsilon

        x = embedded = weights.embedding[plan.token_ids].float()  # [rows, hidden]
        for layer, pool in zip(weights.layers, self._pools, strict=True):
            x = self._layer(x, layer, pool, plan, rotation, rounds)
        normed = rms_norm(x, weights.norm, epsilon)
        if self._mtp is not None:
            self._prime_mtp(embedded, normed, plan, rotation, rounds, self._mtp)
        return weights.head(normed[plan.sampling_rows])[:, : self.vocabulary]

    def _layer(
        self,
        x: torch.Tensor,
        layer: HybridLayer,
        pool: KvPool | StagedPool | StatePool,
        plan: StepPlan,
        rotation: tuple[torch.Tensor, torch.Tensor],
        rounds: list[Round],
    ) -> torch.Tensor:
        epsilon = self.config.norm_epsilon
        normed = rms_norm(x, layer.input_norm, epsilon)
        if isinstance(pool, StatePool):
            assert isinstance(layer.mixer, GatedDeltaNetWeights)
            x = x + gated_delta_net(normed, layer.mixer, self.config, pool, plan.chunks, rounds)
        else:
            assert isinstance(layer.mixer, GatedAttentionWeights)
            x = x + self._attention(normed, layer.mixer, pool, plan, rotation)
        gate, up = layer.gate_up(rms_norm(x, layer.post_norm, epsilon)).chunk(2, dim=-1)
        return x + layer.down(silu(gate.contiguous()) * up)

    def _attention(
        self,
        x: torch.Tensor,
        weights: GatedAttentionWeights,
        pool: KvPool | StagedPool,
        plan: StepPlan,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        q, gate, keys_values = self._project(x, weights, rotation)
        pool.write(plan.slots, keys_values)
        rows, kv_heads = x.shape[0], self.config.kv_heads
        attended = attend(q.view(rows, kv_heads, -1, self.config.head_size), pool, plan)
        return weights.out_projection(attended * torch.sigmoid(gate))

    def _project(
        self, x: torch.Tensor, weights: GatedAttentionWeights, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows, heads, size] and their gates [rows, heads * size]; keys, then values [rows, ...]."""
        config = self.config
        rows, size, kv = x.shape[0], config.head_size, config.kv_heads * config.head_size
        projected = weights.in_projection(x)
        queries_gates = projected[:, : -2 * kv].view(rows, config.heads, 2, size)
        keys = projected[:, -2 * kv : -kv].reshape(rows, config.kv_heads, size)
        q = rotate(rms_norm(queries_gates[:, :, 0].contiguous(), weights.query_norm, config.norm_epsilon), rotation)
        k = rotate(rms_norm(keys, weights.key_norm, config.norm_epsilon), rotation)
        gate = queries_gates[:, :, 1].reshape(rows, -1)
        return q, gate, torch.cat([k.view(rows, kv), projected[:, -kv:]], dim=-1)

    @property
    def has_draft_layer(self) -> bool:
        return self._mtp is not None

    @torch.inference_mode()
    def draft(self, batch: Batch) -> torch.Tensor:
        self._move(batch)
        weights, mtp = self._weights, self._mtp
        assert mtp is not None, "drafting needs a draft layer"
        assert self._mtp_pool is not None
        # One row a sequence: its last token, or the last draft, at that token's place.
        rows = [
            Chunk(chunk.sequence, chunk.end + len(chunk.drafts) - 1, 0, drafts=chunk.drafts[-1:])
            if chunk.drafts
            else chunk
            for chunk in batch.chunks
        ]
        # There is no hidden state before the first token, so nobody looks at its place.
        plan = make_plan(Batch(rows), page_tokens=self._page_tokens, padding_page=self._padding_page, first=1)
        row_of = {id(chunk): at.start for chunk, at in plan.chunks}
        slots = torch.tensor([chunk.sequence.state_slot for chunk, _ in plan.chunks])
        hidden = (self._drafted if batch.chunks[0].drafts else self._carried)[slots]
        x = self._mtp_input(weights.embedding[plan.token_ids].float(), hidden, mtp)
        x = self._layer(x, mtp.layer, self._mtp_pool, plan, self._rotation(plan.positions), [])
        drafted = rms_norm(x, mtp.norm, self.config.norm_epsilon)
        self._drafted[slots] = drafted
        return weights.head(drafted[[row_of[id(chunk)] for chunk in rows]])[:, : self.vocabulary]

    def _prime_mtp(
        self,
        embedded: torch.Tensor,
        normed: torch.Tensor,
        plan: StepPlan,
        rotation: tuple[torch.Tensor, torch.Tensor],
        rounds: list[Round],
        mtp: MtpWeights,
    ) -> None:
        """Keys and values of the draft layer for all rows, whether someone drafts now or not.

        Place p holds (hidden state of token p - 1, token p), so a page depends on its own and earlier tokens alone and
        may be shared by prefix. Place 0 has no hidden state before it and is never looked at. What `draft` left at
        places of drafts came of its own hidden states; it is written over here.
        """
        assert self._mtp_pool is not None
        before = torch.empty_like(normed)
        before[1:] = normed[:-1]
        for chunk, rows in plan.chunks:
            slot = chunk.sequence.state_slot
            before[rows.start] = self._carried[slot] if chunk.start else 0.0
            if chunk.count > 1:
                self._carried[slot] = normed[rows.stop - 1]
            for position, kept_slot in chunk.kept.items():
                self._carried[kept_slot] = normed[rows.start + position - chunk.start - 1]
        for each in rounds:
            self._carried[each.write] = normed[each.rows]
        layer_input = self._mtp_input(embedded, before, mtp)
        assert isinstance(mtp.layer.mixer, GatedAttentionWeights)
        x = rms_norm(layer_input, mtp.layer.input_norm, self.config.norm_epsilon)
        self._mtp_pool.write(plan.slots, self._project(x, mtp.layer.mixer, rotation)[2])

    def _mtp_input(self, embedded: torch.Tensor, hidden: torch.Tensor, mtp: MtpWeights) -> torch.Tensor:
        epsilon = self.config.norm_epsilon
        parts = [rms_norm(embedded, mtp.embedding_norm, epsilon), rms_norm(hidden, mtp.hidden_norm, epsilon)]
        return mtp.projection(torch.cat(parts, dim=-1))

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [rows, rotated / 2]; angles in float64, exact up to the longest context."""
        angles = positions.double()[:, None] * self._frequencies
        cos, sin = (values.float()[:, : self.config.rotated // 2] for values in (angles.cos(), angles.sin()))
        return cos * self.config.rope.magnitude, sin * self.config.rope.magnitude

    def _kv_pools(self) -> list[KvPool | StagedPool]:
        pools = [pool for pool in self._pools if not isinstance(pool, StatePool)]
        return [*pools, self._mtp_pool] if self._mtp_pool is not None else pools

    def _move(self, batch: Batch) -> None:
        while batch.moves:
            move = batch.moves.pop(0)
            if move.kind != "state":
                for pool in self._kv_pools():
                    pool.move(move)
            else:
                for pool_ in self._pools:
                    if isinstance(pool_, StatePool):
                        pool_.move(move)
                copy_place(move, self._carried, self._host_carried)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, epsilon)


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn the first dimensions of each head [rows, heads, size]; the tables have a line for each row."""
    return rotary(x, torch.arange(x.shape[0]), *rotation)

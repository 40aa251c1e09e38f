"""Attention over paged keys and values on CPU, with bits that depend on a query's own position alone.

A sequence's keys lie in pages scattered over the pool, so they are gathered before the product. A query at position p
always sees a key span of the same padded length, the multiple of `SPAN_TOKENS` above p, in one call of the fused kernel
of the same shape: whether it came in a chunk of 256, of 17 or as plain decode, alone or among neighbours. That is what
makes chunked prefill, prefix hits, preemption and batching invisible in the result.

While the same sequences decode on within the same span, what one step gathered is kept for the next, which adds its own
rows: gathering whole spans again would take longer than the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.core.sequence import Sequence
from inference_grpc.model.memory import KvPool
from inference_grpc.model.staged import StagedPool

SPAN_TOKENS = 64
# Of gathered spans that are kept from step to step, over all layers; sequences beyond it are gathered anew each time.
KEPT_BYTES = 256 * 2**20


class Spans(NamedTuple):
    """Gathered keys and values of one layer, as the product wants them, and the memory they lie in."""

    rows: torch.Tensor  # [tokens of whole pages, keys | values] float32
    key: torch.Tensor  # [rows, kv heads, span, head size]
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Decoding:
    """A group whose spans are kept for the next step: of sequences that have one row each."""

    sequences: tuple[Sequence, ...]
    positions: tuple[int, ...]
    span: int
    slots: torch.Tensor  # int64 [rows]: where each row's key and value are in the pool
    places: torch.Tensor  # int64 [rows]: and where in the spans
    before: dict[KvPool, Spans]  # those of the last step, which lack nothing but these rows, as far as not taken
    spans: dict[KvPool, Spans] = field(default_factory=dict)  # of this step, as far as `attend` has come


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring rows of a step that see key spans of one length."""

    rows: slice
    page_ids: torch.Tensor  # int64 [sequences * pages of a span]
    sequences: int  # one per row (decode), or 1 that all rows share (prefill)
    span: int  # tokens
    mask: torch.Tensor  # float32 [rows, 1, 1, span]: 0 where a row may look, else -inf
    decoding: Decoding | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What every layer of one step needs, made once."""

    token_ids: torch.Tensor  # int64 [rows]
    positions: torch.Tensor  # int64 [rows]
    slots: torch.Tensor  # int64 [rows]: where each row's key and value go in the pool
    groups: list[Group]
    chunks: list[tuple[Chunk, slice]]  # each chunk's rows; those of one row, which decode, come first
    # int64: the last row of what each sampling chunk knows, then its drafts' rows; chunks in the order of the batch
    sampling_rows: torch.Tensor
    first: int  # position that a row sees first


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one chunk within one span length."""

    chunk: Chunk
    start: int
    count: int
    span: int


def make_plan(
    batch: Batch,
    *,
    page_tokens: int,
    padding_page: int,
    last: StepPlan | None = None,
    kept_tokens: int = 0,
    first: int = 0,
) -> StepPlan:
    """Orders the rows so that equal spans of decoding sequences stand together and can share a call.

    `last`: the plan of the step before, whose spans are taken over. `kept_tokens`: of the spans to keep from this one.
    `first`: no row sees the positions before it.
    """
    pieces = [piece for chunk in batch.chunks for piece in _pieces(chunk)]
    pieces.sort(key=lambda piece: (piece.chunk.rows > 1, piece.span if piece.chunk.rows == 1 else 0))
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    chunk_rows: dict[int, tuple[Chunk, slice]] = {}
    for piece in pieces:
        sequence = piece.chunk.sequence
        span_positions = range(piece.start, piece.start + piece.count)
        token_ids += piece.chunk.token_ids(piece.start, piece.start + piece.count)
        positions += span_positions
        slots += [sequence.page_ids[p // page_tokens] * page_tokens + p % page_tokens for p in span_positions]
        chunk_start = len(token_ids) - (piece.start + piece.count - piece.chunk.start)
        chunk_rows[id(piece.chunk)] = piece.chunk, slice(chunk_start, len(token_ids))

    position_tensor, slot_tensor = torch.tensor(positions), torch.tensor(slots)
    decoded = [group.decoding for group in last.groups if group.decoding] if last else []
    groups: list[Group] = []
    row = 0
    for members in _grouped(pieces):
        count = sum(piece.count for piece in members)
        rows, row, span = slice(row, row + count), row + count, members[0].span
        page_ids = [page_id for piece in members for page_id in _span_pages(piece, page_tokens, padding_page)]
        places = torch.arange(span)
        hidden = (places > position_tensor[rows, None]) | (places < first)
        mask = torch.zeros(count, span).masked_fill_(hidden, float("-inf"))[:, None, None, :]
        stride = len(page_ids) // len(members) * page_tokens
        decoding = None
        if members[0].chunk.rows == 1 and count * stride <= kept_tokens:
            kept_tokens -= count * stride
            decoding = _decoding(members, positions[rows], span, stride, slot_tensor[rows], decoded)
        groups.append(Group(rows, torch.tensor(page_ids), len(members), span, mask, decoding))
    return StepPlan(
        token_ids=torch.tensor(token_ids),
        positions=position_tensor,
        slots=slot_tensor,
        groups=groups,
        chunks=list(chunk_rows.values()),
        sampling_rows=torch.tensor(
            [row for chunk in batch.chunks if chunk.samples for row in _ends(chunk, chunk_rows[id(chunk)][1])],
            dtype=torch.int64,
        ),
        first=first,
    )


def _ends(chunk: Chunk, rows: slice) -> range:
    return range(rows.start + chunk.count - 1, rows.stop)


def _pieces(chunk: Chunk) -> Iterator[_Piece]:
    start, stop = chunk.start, chunk.start + chunk.rows
    while start < stop:
        span = (start // SPAN_TOKENS + 1) * SPAN_TOKENS
        end = min(span, stop)
        yield _Piece(chunk, start, end - start, span)
        start = end


def _grouped(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Decode rows of one span together; every piece of a longer chunk by itself."""
    decode = [piece for piece in pieces if piece.chunk.rows == 1]
    for _, members in groupby(decode, key=lambda piece: piece.span):
        yield list(members)
    for piece in pieces[len(decode) :]:
        yield [piece]


def _decoding(
    members: list[_Piece], positions: list[int], span: int, stride: int, slots: torch.Tensor, decoded: list[Decoding]
) -> Decoding:
    """With the spans of the group among `decoded` that these rows continue."""
    sequences = tuple(piece.chunk.sequence for piece in members)
    before = tuple(position - 1 for position in positions)
    spans = [each.spans for each in decoded if (each.sequences, each.positions, each.span) == (sequences, before, span)]
    places = torch.tensor([row * stride + position for row, position in enumerate(positions)])
    return Decoding(sequences, tuple(positions), span, slots, places, spans[0] if spans else {})


def _span_pages(piece: _Piece, page_tokens: int, padding_page: int) -> list[int]:
    pages = -(-piece.span // page_tokens)
    held = piece.chunk.sequence.page_ids[:pages]
    return held + [padding_page] * (pages - len(held))


def attend(
    q: torch.Tensor,  # [rows, kv heads, query heads of one kv head, head size]
    pool: KvPool | StagedPool,
    plan: StepPlan,
) -> torch.Tensor:
    """[rows, heads * head size]"""
    if isinstance(pool, StagedPool):
        return pool.attend(q, plan.chunks, plan.first)
    _, kv_heads, shared, size = q.shape
    outputs: list[torch.Tensor] = []
    for group in plan.groups:
        query = q[group.rows]
        count = query.shape[0]
        _, key, value = _spans(pool, group, count, kv_heads)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=group.mask.expand(count, 1, shared, group.span)
        )
        outputs.append(output.reshape(count, kv_heads * shared * size))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _spans(pool: KvPool, group: Group, count: int, kv_heads: int) -> Spans:
    decoding = group.decoding
    spans = decoding.before.pop(pool, None) if decoding else None
    if decoding is not None and spans is not None:
        spans.rows.index_copy_(0, decoding.places, pool.read(decoding.slots))
    else:
        gathered = pool.gather(group.page_ids)
        size = gathered.shape[-1] // 2 // kv_heads
        heads = gathered.view(group.sequences, -1, 2, kv_heads, size)[:, : group.span]
        key, value = heads.permute(2, 0, 3, 1, 4).expand(2, count, kv_heads, group.span, size)
        spans = Spans(gathered.view(-1, gathered.shape[-1]), key, value)
    if decoding is not None:
        decoding.spans[pool] = spans
    return spans

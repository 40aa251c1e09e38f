"""Attention over paged keys and values on CPU, with bits that depend on a query's own position alone.

A sequence's keys lie in pages scattered over the pool, so they are gathered before the product. A query at position p
always sees a key span of the same padded length, the multiple of `SPAN_TOKENS` above p, in one call of the fused kernel
of the same shape: whether it came in a chunk of 256, of 17 or as plain decode, alone or among neighbours. That is what
makes chunked prefill, prefix hits, preemption and batching invisible in the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch

from inference_grpc.core.batch import Batch, Chunk
from inference_grpc.model.memory import KvPool

SPAN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring rows of a step that see key spans of one length."""

    rows: slice
    page_ids: torch.Tensor  # int64 [sequences * pages of a span]
    sequences: int  # one per row (decode), or 1 that all rows share (prefill)
    span: int  # tokens
    mask: torch.Tensor  # float32 [rows, 1, 1, span]: 0 where a row may look, else -inf


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What every layer of one step needs, made once."""

    token_ids: torch.Tensor  # int64 [rows]
    positions: torch.Tensor  # int64 [rows]
    slots: torch.Tensor  # int64 [rows]: where each row's key and value go in the pool
    groups: list[Group]
    chunks: list[tuple[Chunk, slice]]  # each chunk's rows; those of one row, which decode, come first
    sampling_rows: torch.Tensor  # int64 [sampling chunks]: the last row of each, in the order of the batch


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one chunk within one span length."""

    chunk: Chunk
    start: int
    count: int
    span: int


def make_plan(batch: Batch, *, page_tokens: int, padding_page: int) -> StepPlan:
    """Orders the rows so that equal spans of decoding sequences stand together and can share a call."""
    pieces = [piece for chunk in batch.chunks for piece in _pieces(chunk)]
    pieces.sort(key=lambda piece: (piece.chunk.count > 1, piece.span if piece.chunk.count == 1 else 0))
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    chunk_rows: dict[int, tuple[Chunk, slice]] = {}
    for piece in pieces:
        sequence = piece.chunk.sequence
        span_positions = range(piece.start, piece.start + piece.count)
        token_ids += sequence.token_ids[piece.start : piece.start + piece.count]
        positions += span_positions
        slots += [sequence.page_ids[p // page_tokens] * page_tokens + p % page_tokens for p in span_positions]
        first = len(token_ids) - (piece.start + piece.count - piece.chunk.start)
        chunk_rows[id(piece.chunk)] = piece.chunk, slice(first, len(token_ids))

    position_tensor = torch.tensor(positions)
    groups: list[Group] = []
    row = 0
    for members in _grouped(pieces):
        count = sum(piece.count for piece in members)
        rows, row, span = slice(row, row + count), row + count, members[0].span
        page_ids = [page_id for piece in members for page_id in _span_pages(piece, page_tokens, padding_page)]
        hidden = torch.arange(span) > position_tensor[rows, None]
        mask = torch.zeros(count, span).masked_fill_(hidden, float("-inf"))[:, None, None, :]
        groups.append(Group(rows, torch.tensor(page_ids), len(members), span, mask))
    return StepPlan(
        token_ids=torch.tensor(token_ids),
        positions=position_tensor,
        slots=torch.tensor(slots),
        groups=groups,
        chunks=list(chunk_rows.values()),
        sampling_rows=torch.tensor(
            [chunk_rows[id(chunk)][1].stop - 1 for chunk in batch.chunks if chunk.samples], dtype=torch.int64
        ),
    )


def _pieces(chunk: Chunk) -> Iterator[_Piece]:
    start = chunk.start
    while start < chunk.end:
        span = (start // SPAN_TOKENS + 1) * SPAN_TOKENS
        end = min(span, chunk.end)
        yield _Piece(chunk, start, end - start, span)
        start = end


def _grouped(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Decode rows of one span together; every piece of a longer chunk by itself."""
    decode = [piece for piece in pieces if piece.chunk.count == 1]
    for _, members in groupby(decode, key=lambda piece: piece.span):
        yield list(members)
    for piece in pieces[len(decode) :]:
        yield [piece]


def _span_pages(piece: _Piece, page_tokens: int, padding_page: int) -> list[int]:
    pages = -(-piece.span // page_tokens)
    held = piece.chunk.sequence.page_ids[:pages]
    return held + [padding_page] * (pages - len(held))


def attend(
    q: torch.Tensor,  # [rows, kv heads, query heads of one kv head, head size]
    pool: KvPool,
    groups: list[Group],
) -> torch.Tensor:
    """[rows, heads * head size]"""
    _, kv_heads, shared, size = q.shape
    outputs: list[torch.Tensor] = []
    for group in groups:
        query = q[group.rows]
        count = query.shape[0]
        gathered = pool.gather(group.page_ids).view(group.sequences, -1, 2, kv_heads, size)
        key, value = gathered[:, : group.span].permute(2, 0, 3, 1, 4).expand(2, count, kv_heads, group.span, size)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=group.mask.expand(count, 1, shared, group.span)
        )
        outputs.append(output.reshape(count, kv_heads * shared * size))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

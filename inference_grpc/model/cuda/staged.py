"""Prompts over a cache in two stages: which keys and values the rows of a chunk see, in one piece for a product.

Rows of one page see the same pages in three bits, those of the next page one more. So a chunk falls into pieces at its
pages, once its text is longer than what is kept in FP8; each layer decodes the pages of a chunk once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from inference_grpc.core.batch import Chunk
from kernels.paged_attention.cache import PagePools, read_three_bit
from kernels.paged_attention.stage import Staging


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a step whose queries read the same pages in three bits."""

    rows: slice
    tokens: int  # that the last of them sees
    boundary: int  # pages from the anchors up to it are in three bits


@dataclass(frozen=True, slots=True)
class StagedChunk:
    pieces: list[Piece]
    anchors: torch.Tensor  # int64: FP8 pages
    stale: torch.Tensor  # int64: three-bit pages that follow, up to the boundary of the last piece
    recent: torch.Tensor  # int64: FP8 pages from the boundary of the first piece on

    def parts(self, memory: PagePools, dtype: torch.dtype) -> Iterator[tuple[Piece, torch.Tensor, torch.Tensor]]:
        """The pieces with the keys and values [tokens, kv heads, D] that they see, rotated."""
        decoded = [part.to(dtype) for part in read_three_bit(memory, self.stale)]
        pools = [pool.view(torch.uint8) for pool in (memory.keys, memory.values)]
        first, recent = ([_fp8(pool[at], dtype) for pool in pools] for at in (self.anchors, self.recent))
        for piece in self.pieces:
            stale, skipped = piece.boundary - len(self.anchors), piece.boundary - self.pieces[0].boundary
            keys, values = (
                torch.cat([a, b[:stale], c[skipped:]]).transpose(1, 2).flatten(0, 1)[: piece.tokens]
                for a, b, c in zip(first, decoded, recent, strict=True)
            )
            yield piece, keys, values


def staged_chunk(chunk: Chunk, rows: slice, rule: Staging, device: torch.device) -> StagedChunk:
    """`rows`: of the chunk in its step."""
    page_ids, three_bit_ids = chunk.sequence.page_ids, chunk.sequence.three_bit_ids
    pieces: list[Piece] = []
    for page in range(chunk.start // rule.page_tokens, (chunk.end - 1) // rule.page_tokens + 1):
        boundary = rule.boundary(page)
        start, end = max(page * rule.page_tokens, chunk.start), min((page + 1) * rule.page_tokens, chunk.end)
        at = slice(rows.start + start - chunk.start, rows.start + end - chunk.start)
        if pieces and pieces[-1].boundary == boundary:
            at = slice(pieces.pop().rows.start, at.stop)
        pieces.append(Piece(at, end, boundary))
    pages = -(-chunk.end // rule.page_tokens)

    def ids(held: list[int]) -> torch.Tensor:
        return torch.tensor(held, dtype=torch.int64, device=device)

    return StagedChunk(
        pieces,
        anchors=ids(page_ids[: min(rule.anchors, pages)]),
        stale=ids(three_bit_ids[rule.anchors : pieces[-1].boundary]),
        recent=ids(page_ids[pieces[0].boundary : pages]),
    )


def _fp8(pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return pages.view(torch.float8_e4m3fn).to(dtype)

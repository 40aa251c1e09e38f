"""Which keys and values the rows of a step see, as spans that are brought together from pages.

Where the cache has one stage, a chunk's rows see one span: its text from the beginning. Where it has two, rows of one
page see the same pages in three bits, those of the next page one more: a chunk falls into pieces at its pages, once its
text is longer than what is kept in FP8, and each has a span of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch

from inference_grpc.core.batch import Chunk
from inference_grpc.core.staged import NO_PAGE
from kernels.paged_attention.stage import Staging

# In one launch, if one span is not longer: a gigabyte of keys and values of the 27B model.
MOST_TOKENS = 262_144


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a step that see the same span."""

    rows: slice
    tokens: int  # that the last of them sees
    table: torch.Tensor  # int32 [pages, 4] on the host: as `page_spans` wants it, places from 0 on


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Pieces whose rows follow each other, computed at once."""

    pieces: list[Piece]
    rows: slice
    tokens: int  # of all spans
    table: torch.Tensor  # int32 [pages, 4]
    q_starts: torch.Tensor  # int32 [pieces + 1], from the first of `rows` on
    key_starts: torch.Tensor  # int32 [pieces + 1]
    most_rows: int  # of one piece
    most_tokens: int


def span_groups(
    chunks: list[Chunk], page_tokens: int, rule: Staging | None, device: torch.device | str
) -> list[SpanGroup]:
    groups: list[list[Piece]] = []
    left, first_row = 0, 0
    for chunk in chunks:
        for piece in _pieces(chunk, first_row, page_tokens, rule):
            if piece.tokens > left or not groups:
                groups.append([])
                left = MOST_TOKENS
            groups[-1].append(piece)
            left -= piece.tokens
        first_row += chunk.count
    return [_group(pieces, device) for pieces in groups]


def _group(pieces: list[Piece], device: torch.device | str) -> SpanGroup:
    rows = slice(pieces[0].rows.start, pieces[-1].rows.stop)
    key_starts = [0, *accumulate(piece.tokens for piece in pieces)]
    q_starts = [0, *(piece.rows.stop - rows.start for piece in pieces)]
    shift = torch.tensor([0, 0, 1, 0], dtype=torch.int32)
    table = torch.cat([piece.table + shift * start for piece, start in zip(pieces, key_starts, strict=False)])
    starts = torch.tensor([q_starts, key_starts], dtype=torch.int32).to(device, non_blocking=True)
    return SpanGroup(
        pieces,
        rows,
        key_starts[-1],
        table.to(device, non_blocking=True),
        starts[0],
        starts[1],
        max(piece.rows.stop - piece.rows.start for piece in pieces),
        max(piece.tokens for piece in pieces),
    )


def _pieces(chunk: Chunk, first_row: int, page_tokens: int, rule: Staging | None) -> Iterator[Piece]:
    page_ids, three_bit_ids = (
        torch.tensor(ids, dtype=torch.int32) for ids in (chunk.sequence.page_ids, chunk.sequence.three_bit_ids)
    )
    for start, end, boundary in _cuts(chunk, page_tokens, rule):
        pages = -(-end // page_tokens)
        table = torch.empty(pages, 4, dtype=torch.int32)
        table[:, 0], table[:, 1] = page_ids[:pages], NO_PAGE
        if rule is not None and boundary > rule.anchors:
            stale = slice(rule.anchors, boundary)
            table[stale, 0], table[stale, 1] = NO_PAGE, three_bit_ids[stale]
        table[:, 2] = torch.arange(0, pages * page_tokens, page_tokens)
        table[:, 3] = page_tokens
        table[-1, 3] = end - (pages - 1) * page_tokens
        yield Piece(slice(first_row + start - chunk.start, first_row + end - chunk.start), end, table)


def _cuts(chunk: Chunk, page_tokens: int, rule: Staging | None) -> list[tuple[int, int, int]]:
    """Start and end of each piece, and up to which page it reads three bits."""
    if rule is None:
        return [(chunk.start, chunk.end, 0)]
    cuts: list[tuple[int, int, int]] = []
    for page in range(chunk.start // page_tokens, (chunk.end - 1) // page_tokens + 1):
        boundary = rule.boundary(page)
        start, end = max(page * page_tokens, chunk.start), min((page + 1) * page_tokens, chunk.end)
        if cuts and cuts[-1][2] == boundary:
            start = cuts.pop()[0]
        cuts.append((start, end, boundary))
    return cuts

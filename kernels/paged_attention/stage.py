"""Which stage a page of the KV cache is in: a pure function of position, so that nothing but position decides what a
query reads.

A query at position p reads page j in FP8 if j is an anchor (one of the first pages) or recent (less than `recent`
pages behind
the query's own), else in three bits. Two rows of one verification may stand on both sides of a boundary and read the
same
page differently, exactly as plain decoding would; therefore a page keeps its FP8 copy for one page longer
(`may_drop_fp8`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Staging:
    page_tokens: int = 64
    anchors: int = 4  # pages: attention sinks live there
    recent: int = 32  # pages, the query's own included

    def __post_init__(self) -> None:
        if self.page_tokens < 16 or self.page_tokens & (self.page_tokens - 1):
            raise ValueError(f"page_tokens must be a power of two from 16 on, not {self.page_tokens}")
        if self.anchors < 0 or self.recent < 1:
            raise ValueError(f"anchors must be at least 0 and recent at least 1, not {self.anchors} and {self.recent}")

    def is_fp8(self, position: int, page: int) -> bool:
        return page < self.anchors or position // self.page_tokens - page < self.recent

    def needs_three_bits(self, committed: int, page: int) -> bool:
        """Whether a query at `committed` (the next position to be computed) or later reads the page in three bits."""
        return page >= self.anchors and committed // self.page_tokens - page >= self.recent

    def to_encode_ahead(self, committed: int, page: int, rows: int) -> bool:
        """Whether the last of `rows` queries from `committed` on reads the page in three bits: encode it before that
        step."""
        return self.needs_three_bits(committed + rows - 1, page)

    def may_drop_fp8(self, committed: int, page: int) -> bool:
        """No query from `committed` on reads the FP8 copy any more, and none one page earlier would have."""
        return page >= self.anchors and committed // self.page_tokens - page > self.recent

    def fp8_pages(self, tokens: int) -> int:
        """Pages held in FP8 by a sequence of `tokens`, the copies kept one page longer included."""
        pages = -(-tokens // self.page_tokens)
        return sum(not self.may_drop_fp8(tokens, page) for page in range(pages))

    def three_bit_pages(self, tokens: int) -> int:
        pages = -(-tokens // self.page_tokens)
        return sum(self.needs_three_bits(tokens, page) for page in range(pages))

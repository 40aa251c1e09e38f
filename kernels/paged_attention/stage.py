"""Which stage a page of the KV cache is in: a pure function of position, so that nothing but position decides what a
query reads.

A query at position p reads page j in FP8 if j is an anchor (one of the first pages) or recent (less than `recent` pages
behind the query's own), else in three bits. Two rows of one verification may stand on both sides of a boundary and read
the same page differently, exactly as plain decoding would; therefore a page keeps its FP8 copy for one page longer.
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

    def boundary(self, page: int) -> int:
        """A query in `page` reads the pages from the anchors up to this one in three bits, the others in FP8."""
        return max(page - self.recent + 1, self.anchors)

    def is_fp8(self, position: int, page: int) -> bool:
        return not self.anchors <= page < self.boundary(position // self.page_tokens)

    def three_bit_pages(self, tokens: int) -> int:
        """That the query after so many tokens reads."""
        return self.boundary(tokens // self.page_tokens) - self.anchors

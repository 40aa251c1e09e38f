"""How a cache in two stages is laid out: pages in FP8, and stale ones in three bits (`kernels/paged_attention`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernels.paged_attention.stage import Staging

# In a block table of one pool: the page has no copy there that its sequence holds.
NO_PAGE: Final = -1


@dataclass(frozen=True, slots=True)
class StagedPages:
    """The pool of three-bit pages beside that of FP8 pages, and the rule that says which of both a query reads."""

    rule: Staging
    three_bit_pages: int
    step_tokens: int  # of prompts that one step computes at most
    host_three_bit_pages: int = 0

    def __post_init__(self) -> None:
        if self.rule.recent < 2:
            raise ValueError(
                f"recent pages are {self.rule.recent}; at least 2: a page is read in three bits once it is complete"
            )

    @property
    def fp8_window(self) -> int:
        """FP8 pages that one sequence holds at most between its steps: anchors, recent ones and one kept longer."""
        return self.rule.anchors + self.rule.recent + 1

    @property
    def fp8_peak(self) -> int:
        """The same within a step, which writes before what has become stale is given back."""
        return self.fp8_window + -(-self.step_tokens // self.rule.page_tokens)

    def longest_pages(self, fp8_pages: int) -> int:
        """Of the longest sequence that fits alone into both pools."""
        longest = self.three_bit_pages + self.rule.anchors + self.rule.recent
        return longest if fp8_pages >= self.fp8_peak else min(longest, fp8_pages)


def split_pages(pages: int, sequences: int, rule: Staging, step_tokens: int) -> tuple[int, int]:
    """FP8 and three-bit pages so that so many sequences can share `pages` of context, however they do: each has its
    window in FP8 and one step writes. The second is less than one where the windows alone take all."""
    kept = rule.anchors + rule.recent
    fp8_pages = sequences * (kept + 1) + -(-step_tokens // rule.page_tokens)
    return min(fp8_pages, pages), pages - sequences * kept

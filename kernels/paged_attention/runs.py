"""How a context is cut into runs of pages, one for each program: at absolute positions, the same for every batch.

Runs are short at first, so that a short context keeps the device busy, and long after that, so that a long one does not
spend its time on starting runs and joining them.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT_TOKENS = 128
SHORT_RUNS = 8
LONG_TOKENS = 1024


@dataclass(frozen=True)
class Runs:
    """`short_pages` in each of the first `short_runs`, then `long_pages`."""

    short_pages: int
    short_runs: int
    long_pages: int

    def count(self, pages: int) -> int:
        """Runs that `pages` pages take."""
        short = self.short_pages * self.short_runs
        if pages <= short:
            return -(-pages // self.short_pages)
        return self.short_runs - (short - pages) // self.long_pages

    @property
    def constants(self) -> dict[str, int]:
        """As the Triton kernels want them."""
        return {"SHORT": self.short_pages, "SHORT_RUNS": self.short_runs, "LONG": self.long_pages}


def runs_of(page_tokens: int) -> Runs:
    return Runs(max(SHORT_TOKENS // page_tokens, 1), SHORT_RUNS, max(LONG_TOKENS // page_tokens, 1))

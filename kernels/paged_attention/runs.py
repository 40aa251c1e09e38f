"""How a context is cut into runs of pages, one for each program: at absolute positions, the same for every batch.

Runs are short at first, so that a short context keeps the device busy, and double until they are long, so that a long
one does not spend its time on starting runs and joining them; the short ones, which are started last, fill the gaps
that the long ones leave.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_TOKENS = 128
LEVEL_RUNS = 8
LEVELS = 4


@dataclass(frozen=True)
class Runs:
    """`level_runs` runs of `run_pages`, as many of twice that, and so on; those of the last of `levels` go on."""

    run_pages: int
    level_runs: int
    levels: int

    def count(self, pages: int) -> int:
        """Runs that `pages` pages take."""
        last, first_level = pages - 1, self.level_runs * self.run_pages
        level = sum(last >= first_level * ((1 << n) - 1) for n in range(1, self.levels))
        start = first_level * ((1 << level) - 1)
        return self.level_runs * level + (last - start) // (self.run_pages << level) + 1

    @property
    def constants(self) -> dict[str, int]:
        """As the Triton kernels want them."""
        return {"RUN": self.run_pages, "LEVEL_RUNS": self.level_runs, "LEVELS": self.levels}


def runs_of(page_tokens: int) -> Runs:
    return Runs(max(SHORTEST_TOKENS // page_tokens, 1), LEVEL_RUNS, LEVELS)

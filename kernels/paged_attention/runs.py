"""How a context is cut into runs of pages, one for each program: at absolute positions, the same for every batch.

Runs are short at first, so that a short context keeps the device busy, and double until they are long, so that a long
one does not spend its time on starting runs and joining them; the short ones, which are started last, fill the gaps
that the long ones leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.paged_attention.stage import Staging

SHORTEST_TOKENS = 128
LEVEL_RUNS = 8
LEVELS = 4


@dataclass(frozen=True)
class Runs:
    """`level_runs` runs of `run_pages`, as many of twice that, and so on; those of the last of `levels` go on. Where a
    query reads pages between `anchors` and its `recent` ones in another stage, the recent ones are cut by themselves,
    in runs of twice `run_pages`, and the others begin with that length, half as many of each."""

    run_pages: int
    level_runs: int
    levels: int
    anchors: int = 0
    recent: int = 0  # 0: all pages are cut as one

    def recent_runs(self, pages: int) -> int:
        """Runs of recent pages, if any query of a context of `pages` has others than these and anchors."""
        return -(-self.recent // (2 * self.run_pages)) if self.recent and pages - self.recent > self.anchors else 0

    def count(self, pages: int) -> int:
        """Runs that `pages` pages take at most."""
        apart = self.recent_runs(pages)
        if not apart:
            return self._doubling(pages)
        later = replace(self, run_pages=2 * self.run_pages, level_runs=self.level_runs // 2, levels=self.levels - 1)
        return max(self._doubling(self.anchors + self.recent), later._doubling(pages - self.recent)) + apart

    def _doubling(self, pages: int) -> int:
        last, first_level = pages - 1, self.level_runs * self.run_pages
        level = sum(last >= first_level * ((1 << n) - 1) for n in range(1, self.levels))
        start = first_level * ((1 << level) - 1)
        return self.level_runs * level + (last - start) // (self.run_pages << level) + 1

    @property
    def constants(self) -> dict[str, int]:
        """As the kernels that join want them."""
        return {
            "RUN": self.run_pages,
            "LEVEL_RUNS": self.level_runs,
            "LEVELS": self.levels,
            "ANCHORS": self.anchors,
            "RECENT": self.recent,
        }


def runs_of(page_tokens: int, staging: Staging | None = None) -> Runs:
    runs = Runs(max(SHORTEST_TOKENS // page_tokens, 1), LEVEL_RUNS, LEVELS)
    return runs if staging is None else replace(runs, anchors=staging.anchors, recent=staging.recent)

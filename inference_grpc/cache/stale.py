"""Pages in three bits: the second pool of a cache in two stages, and what is demoted into it.

A query at position p reads page j in FP8 or in three bits by positions alone (`Staging.is_fp8`), so a page has no stage
of its own: it is a text, and each pool may hold a copy of it. A sequence holds the copies that its queries to come will
read. Two sequences that share a prefix may read one page differently at the same time: each holds its copy, and a copy
goes when its last holder lets go of it. What is encoded is the FP8 copy, so a three-bit copy has the same bits whoever
made it and when, and can be found by prefix as well.

Without a rule nothing is ever stale: the cache has one stage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Listed
from typing import Final, NamedTuple

from inference_grpc.cache.pages import PagePool
from inference_grpc.cache.prefix import PrefixIndex
from inference_grpc.core.batch import Move
from inference_grpc.core.sequence import Sequence
from inference_grpc.core.staged import NO_PAGE, StagedPages


class Footprint(NamedTuple):
    """Pages of either pool."""

    pages: int = 0
    three_bit: int = 0


NOTHING: Final = Footprint()


class StalePages:
    def __init__(self, staged: StagedPages | None) -> None:
        self.staged = staged
        self.pool = PagePool(staged.three_bit_pages if staged else 0)
        self.anchors = staged.rule.anchors if staged else 0
        self._index = PrefixIndex()

    def boundary(self, page: int) -> int:
        """Pages from anchors up to it are stale for a query in `page`, the others FP8."""
        return self.staged.rule.boundary(page) if self.staged else 0

    def footprint(self, pages: int, *, decodes: bool) -> Footprint:
        """What a sequence holds at most on its way to so many pages; less if it `decodes`, a token at a time."""
        if self.staged is None:
            return Footprint(pages)
        most = self.staged.fp8_window if decodes else self.staged.fp8_peak
        return Footprint(min(pages, most), self.boundary(pages - 1) - self.anchors)

    def reach(self, computed: int, tokens: int, budget: int) -> int:
        """How many of its tokens a step of `budget` tokens may bring a sequence to: no row of it may look at a page in
        three bits that the step itself writes, and what is computed later gets its pages later."""
        if self.staged is None:
            return tokens
        rule = self.staged.rule
        still_fp8 = (computed // rule.page_tokens + rule.recent) * rule.page_tokens
        return min(tokens, computed + max(budget, 1), still_fp8)

    def find(self, digest: bytes) -> int:
        found = self._index.find(digest)
        return NO_PAGE if found is None else found

    def resumes(self, gaps: Listed[int], count: int) -> bool:
        """Whether a sequence can go on after `count` pages of which those in `gaps` (ascending) have no FP8 copy."""
        at = bisect_left(gaps, self.boundary(count))
        is_recent_whole = at == len(gaps) or gaps[at] >= count
        return is_recent_whole and not (gaps and gaps[0] < min(self.anchors, count))

    def fits(self, found: Listed[int], three_bit: int) -> bool:
        """Whether a newcomer finds so many pages beside its copies that are `found`."""
        shared = held(found[self.anchors :])
        reused = sum(1 for page_id in shared if not self.pool.references(page_id))
        return three_bit - len(shared) <= self.pool.available - reused

    def missing(self, places: Listed[int], boundary: int) -> int:
        """Copies up to `boundary` that a sequence does not have whose copies lie in `places` of host memory."""
        return max(boundary - max(len(places), self.anchors), 0)

    def has_room(self, sequence: Sequence, boundary: int) -> bool:
        """Whether `demote` would find the pages it needs."""
        found = [self._copy_of(sequence, page) for page in self._to_come(sequence, boundary)]
        fresh = sum(1 for page_id in found if page_id == NO_PAGE)
        reused = sum(1 for page_id in found if page_id != NO_PAGE and not self.pool.references(page_id))
        return fresh <= self.pool.available - reused

    def demote(self, sequence: Sequence, boundary: int, fp8_ids: Listed[int]) -> list[Move]:
        """Let the sequence hold three-bit copies of its pages up to `boundary`; the moves encode those that are not
        there yet from `fp8_ids`, by page. The caller has looked at `has_room`."""
        copies, to_come = sequence.three_bit_ids, self._to_come(sequence, boundary)
        if not to_come:
            return []
        copies += [NO_PAGE] * (to_come.start - len(copies))
        found = {page: self._copy_of(sequence, page) for page in to_come}
        for page_id in found.values():
            if page_id != NO_PAGE:
                self.pool.share(page_id)
        fresh, were_cached = self.pool.take(sum(1 for page_id in found.values() if page_id == NO_PAGE))
        for page_id in were_cached:
            self._index.forget(page_id)
        moves, unused = [], iter(fresh)
        for page, page_id in found.items():
            if page_id == NO_PAGE:
                page_id = next(unused)
                moves.append(Move("demotion", fp8_ids[page], page_id))
                digest = self._digest_of(sequence, page)
                if digest is not None and self._index.add(digest, page_id):
                    self.pool.mark_findable(page_id)
            copies.append(page_id)
        return moves

    def shrink(self, sequence: Sequence, boundary: int) -> None:
        """Let go of its copies from `boundary` on. It still holds the FP8 ones that they were encoded from."""
        kept = boundary if boundary > self.anchors else 0
        self.pool.release(reversed(held(sequence.three_bit_ids[kept:])))
        del sequence.three_bit_ids[kept:]

    def restore(self, sequence: Sequence, places: list[int]) -> list[Move]:
        """Fresh copies for what lay in `places` of host memory. The caller has looked at `pool.available`."""
        fresh, were_cached = self.pool.take(sum(1 for place in places if place != NO_PAGE))
        for page_id in were_cached:
            self._index.forget(page_id)
        unused = iter(fresh)
        sequence.three_bit_ids = [place if place == NO_PAGE else next(unused) for place in places]
        pairs = zip(held(places), fresh, strict=True)
        return [Move("three_bit", place, page_id, "from_host") for place, page_id in pairs]

    def share(self, page_ids: Listed[int]) -> list[int]:
        """One more sequence holds them."""
        for page_id in held(page_ids):
            self.pool.share(page_id)
        return list(page_ids)

    def release(self, sequence: Sequence) -> None:
        self.pool.release(reversed(held(sequence.three_bit_ids)))
        sequence.three_bit_ids = []

    def forget_prefixes(self) -> None:
        self._index.clear()
        self.pool.drop_cached()

    def _to_come(self, sequence: Sequence, boundary: int) -> range:
        return range(max(len(sequence.three_bit_ids), self.anchors), boundary)

    def _copy_of(self, sequence: Sequence, page: int) -> int:
        digest = self._digest_of(sequence, page)
        return NO_PAGE if digest is None else self.find(digest)

    def _digest_of(self, sequence: Sequence, page: int) -> bytes | None:
        """By which the page can be found; None: it cannot."""
        return sequence.page_hashes[page] if page < sequence.published else None


def held(page_ids: Listed[int]) -> list[int]:
    """The copies that are there."""
    return [page_id for page_id in page_ids if page_id != NO_PAGE]

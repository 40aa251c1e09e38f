"""The page pool: a page is free, held (by one or more sequences) or cached (held by none, still found by prefix)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable


class PagePool:
    def __init__(self, pages: int) -> None:
        self.total = pages
        self._free = deque(range(pages))
        self._references = [0] * pages
        # Held by none, in the order in which they may be taken again: the longest unused first.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._findable: set[int] = set()  # pages that the prefix index names

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def held(self) -> int:
        return sum(1 for count in self._references if count)

    @property
    def available(self) -> int:
        """Pages that can be taken now."""
        return len(self._free) + len(self._cached)

    def references(self, page_id: int) -> int:
        return self._references[page_id]

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Pages for writing, each held once, and those of them that were cached: the index must forget these.

        The caller has looked at `available`.
        """
        page_ids = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        were_cached: list[int] = []
        if len(page_ids) < count:
            were_cached = [self._cached.popitem(last=False)[0] for _ in range(count - len(page_ids))]
            self._findable.difference_update(were_cached)
            page_ids += were_cached
        for page_id in page_ids:
            self._references[page_id] = 1
        return page_ids, were_cached

    def share(self, page_id: int) -> None:
        """One more sequence holds a page that was found by prefix."""
        self._cached.pop(page_id, None)
        self._references[page_id] += 1

    def mark_findable(self, page_id: int) -> None:
        """The prefix index names it now: when its last sequence releases it, it is kept instead of freed."""
        self._findable.add(page_id)

    def release(self, page_ids: Iterable[int]) -> None:
        """One sequence less holds each of them. They are taken again in this order."""
        references, findable = self._references, self._findable
        for page_id in page_ids:
            # A page shared by a prefix hit stays alive until its last sequence releases it.
            references[page_id] -= 1
            if references[page_id]:
                continue
            if page_id in findable:
                self._cached[page_id] = None
            else:
                self._free.append(page_id)

    def drop_cached(self) -> None:
        """Free every page that only the prefix index knew, and let the index forget the others."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._findable.clear()

    def check_integrity(self) -> None:
        """Raises AssertionError if a page is lost, doubled or miscounted."""
        free, cached = set(self._free), set(self._cached)
        held = {page_id for page_id, count in enumerate(self._references) if count}
        if min(self._references, default=0) < 0:
            raise AssertionError("a page was released more often than held")
        if len(free) != len(self._free) or free & cached or free & held or cached & held:
            raise AssertionError("a page is in two states at once")
        if len(free) + len(cached) + len(held) != self.total:
            raise AssertionError(f"{self.total} pages, but {len(free)} free, {len(cached)} cached, {len(held)} held")
        if not cached <= self._findable or free & self._findable:
            raise AssertionError("the pages that are cached and those that can be found differ")

"""The page pool: a page is free, held (by one or more sequences) or cached (held by none, still found by prefix)."""

from __future__ import annotations

from collections import OrderedDict, deque


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

    def take(self) -> tuple[int, bool]:
        """A page for writing, held once, and whether it was cached: its owner in the index must then forget it.

        The caller has looked at `available`.
        """
        was_cached = not self._free
        page_id = self._cached.popitem(last=False)[0] if was_cached else self._free.popleft()
        self._findable.discard(page_id)
        self._references[page_id] = 1
        return page_id, was_cached

    def share(self, page_id: int) -> None:
        """One more sequence holds a page that was found by prefix."""
        self._cached.pop(page_id, None)
        self._references[page_id] += 1

    def mark_findable(self, page_id: int) -> None:
        """The prefix index names it now: when its last sequence releases it, it is kept instead of freed."""
        self._findable.add(page_id)

    def release(self, page_id: int) -> None:
        # A page shared by a prefix hit stays alive until its last sequence releases it.
        self._references[page_id] -= 1
        if self._references[page_id]:
            return
        if page_id in self._findable:
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

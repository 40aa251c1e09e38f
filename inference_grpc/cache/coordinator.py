"""The engine's only face to the cache: it gives pages to sequences, takes them back, and finds prefixes again."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Tokens

from inference_grpc.cache.pages import PagePool
from inference_grpc.cache.prefix import PrefixIndex, page_hash, root_hash
from inference_grpc.core.sequence import Sequence


class CacheCoordinator:
    def __init__(self, *, pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self._index = PrefixIndex()

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def longest_prefix(self, token_ids: Tokens[int], tenant: str) -> list[tuple[int, bytes]]:
        """(page id, hash) of the leading full pages that are there. The last token is never among them: it must be
        computed, since its logits are wanted."""
        found: list[tuple[int, bytes]] = []
        digest = root_hash(tenant)
        for start in range(0, len(token_ids) - self.page_tokens, self.page_tokens):
            digest = page_hash(digest, token_ids[start : start + self.page_tokens])
            page_id = self._index.find(digest)
            if page_id is None:
                break
            found.append((page_id, digest))
        return found

    def admit(self, sequence: Sequence, *, reserve: int = 0) -> bool:
        """Give it the pages of its known tokens, found ones first, and leave `reserve` pages for others.

        False, and nothing changed, if there are too few. Sets `computed` to what was found, and at the first admission
        `cached_tokens` too.
        """
        found = self.longest_prefix(sequence.token_ids, sequence.tenant)
        reused_cached = sum(1 for page_id, _ in found if self.pool.references(page_id) == 0)
        fresh = self.pages_for(len(sequence.token_ids)) - len(found)
        if fresh + reserve > self.pool.available - reused_cached:
            return False
        for page_id, _ in found:
            self.pool.share(page_id)
        sequence.page_ids = [page_id for page_id, _ in found] + [self._take() for _ in range(fresh)]
        sequence.page_hashes = [digest for _, digest in found]
        sequence.computed = len(found) * self.page_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        return True

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Make sure it holds pages for its first `tokens` tokens; False, and nothing changed, if there are too few."""
        missing = self.pages_for(tokens) - len(sequence.page_ids)
        if missing > self.pool.available:
            return False
        sequence.page_ids += [self._take() for _ in range(missing)]
        return True

    def commit(self, sequence: Sequence, computed: int) -> None:
        """Keys and values of the first `computed` tokens are written and final; pages that became full can be found."""
        sequence.computed = computed
        for number in range(len(sequence.page_hashes), computed // self.page_tokens):
            parent = sequence.page_hashes[-1] if sequence.page_hashes else root_hash(sequence.tenant)
            start = number * self.page_tokens
            digest = page_hash(parent, sequence.token_ids[start : start + self.page_tokens])
            sequence.page_hashes.append(digest)
            if self._index.add(digest, sequence.page_ids[number]):
                self.pool.mark_findable(sequence.page_ids[number])

    def release(self, sequence: Sequence) -> None:
        """Give all its pages back. Repeating it changes nothing."""
        # The end of a text is the least likely to be met again: it goes first, so it is taken first.
        for page_id in reversed(sequence.page_ids):
            self.pool.release(page_id)
        sequence.page_ids = []
        sequence.page_hashes = []
        sequence.computed = 0

    def forget_prefixes(self) -> None:
        """After a fault nothing that was computed before may be found again."""
        self._index.clear()
        self.pool.drop_cached()

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Raises AssertionError unless free + held + cached = all, and the counts are those of the block tables."""
        self.pool.check_integrity()
        counted = [0] * self.pool.total
        for sequence in holders:
            for page_id in sequence.page_ids:
                counted[page_id] += 1
        for page_id, count in enumerate(counted):
            if count != self.pool.references(page_id):
                raise AssertionError(
                    f"page {page_id} is in {count} block tables but counted {self.pool.references(page_id)} times"
                )

    def _take(self) -> int:
        page_id, was_cached = self.pool.take()
        if was_cached:
            self._index.forget(page_id)
        return page_id

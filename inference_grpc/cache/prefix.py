"""The prefix index: full pages by the hash of everything up to their end.

A page's hash covers its own tokens and the hash of the page before it, and the chain starts from the tenant. So two
sequences meet on a page only if their whole text up to its end is equal and they belong to one tenant: nobody can find
out by a hit (it is faster) what another tenant asked.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence


def root_hash(tenant: str) -> bytes:
    return hashlib.blake2b(tenant.encode(), digest_size=32, person=b"prefix-root").digest()


def page_hashes(parent: bytes, token_ids: Sequence[int], page_tokens: int) -> Iterator[bytes]:
    """Of full pages in a row, the first of which follows the one with the hash `parent`."""
    packed, size = struct.pack(f"<{len(token_ids)}I", *token_ids), 4 * page_tokens
    for start in range(0, len(packed), size):
        parent = hashlib.blake2b(packed[start : start + size], digest_size=32, key=parent).digest()
        yield parent


class PrefixIndex:
    def __init__(self) -> None:
        self._page_by_hash: dict[bytes, int] = {}
        self._hash_by_page: dict[int, bytes] = {}

    def find(self, digest: bytes) -> int | None:
        return self._page_by_hash.get(digest)

    def add(self, digest: bytes, page_id: int) -> bool:
        """False if another page holds the same text already; that one stays."""
        if digest in self._page_by_hash:
            return False
        self._page_by_hash[digest] = page_id
        self._hash_by_page[page_id] = digest
        return True

    def forget(self, page_id: int) -> bytes:
        """Returns the hash it was found by."""
        digest = self._hash_by_page.pop(page_id)
        del self._page_by_hash[digest]
        return digest

    def clear(self) -> None:
        self._page_by_hash.clear()
        self._hash_by_page.clear()

    def page_ids(self) -> set[int]:
        return set(self._hash_by_page)

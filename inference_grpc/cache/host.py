"""Places in host memory: pages and states of sequences that were preempted, and kept states that gave way.

What a preempted sequence leaves here is its own until it runs again or ends. A state of a prefix is only a copy worth
having: it gives way, the longest unused first, to either.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence


class HostMemory:
    def __init__(self, pages: int, states: int, three_bit_pages: int = 0) -> None:
        self.total_pages, self.total_states, self.total_three_bit = pages, states, three_bit_pages
        self._free_pages = deque(range(pages))
        self._free_three_bit = deque(range(three_bit_pages))
        self._free_states = deque(range(states))
        self._spilled: OrderedDict[bytes, int] = OrderedDict()

    @property
    def spilled(self) -> int:
        return len(self._spilled)

    @property
    def held(self) -> int:
        """Pages of preempted sequences, of both kinds."""
        return self.total_pages - len(self._free_pages) + self.total_three_bit - len(self._free_three_bit)

    def take_pages(self, count: int, three_bit: int = 0) -> tuple[list[int], list[int]] | None:
        """Places for so many pages of either kind, or for none."""
        if count > len(self._free_pages) or three_bit > len(self._free_three_bit):
            return None
        return (
            [self._free_pages.popleft() for _ in range(count)],
            [self._free_three_bit.popleft() for _ in range(three_bit)],
        )

    def take_state(self) -> int | None:
        if self._free_states:
            return self._free_states.popleft()
        return self._spilled.popitem(last=False)[1] if self._spilled else None

    def give_back(self, pages: list[int], state: int | None, three_bit: Sequence[int] = ()) -> None:
        self._free_pages.extend(pages)
        self._free_three_bit.extend(three_bit)
        if state is not None:
            self._free_states.append(state)

    def has(self, digest: bytes) -> bool:
        return digest in self._spilled

    def spill(self, digest: bytes) -> int | None:
        """A place for the state of a prefix; None if preempted sequences hold all."""
        place = self.take_state()
        if place is not None:
            self._spilled[digest] = place
        return place

    def borrow(self, digest: bytes) -> int:
        """The place of a state that is there; it cannot give way before it is `returned`."""
        return self._spilled.pop(digest)

    def returned(self, digest: bytes, place: int) -> None:
        self._spilled[digest] = place

    def forget(self, digest: bytes) -> None:
        """Its prefix cannot be found any more."""
        place = self._spilled.pop(digest, None)
        if place is not None:
            self._free_states.append(place)

    def drop_spilled(self) -> None:
        self._free_states.extend(self._spilled.values())
        self._spilled.clear()

    def check_integrity(self, pages: list[int], states: list[int], three_bit: Sequence[int] = ()) -> None:
        """Raises AssertionError unless free + spilled + what preempted sequences hold are all places, each once."""
        if sorted([*self._free_three_bit, *three_bit]) != list(range(self.total_three_bit)):
            raise AssertionError(
                f"{self.total_three_bit} host places of three bits: {sorted(three_bit)} are held and others not free"
            )
        if sorted([*self._free_pages, *pages]) != list(range(self.total_pages)):
            raise AssertionError(f"{self.total_pages} host pages, but {sorted(pages)} are held and others not free")
        if sorted([*self._free_states, *self._spilled.values(), *states]) != list(range(self.total_states)):
            raise AssertionError(f"{self.total_states} host states, but {sorted(states)} are held and others not free")

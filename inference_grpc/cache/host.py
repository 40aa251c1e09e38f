"""Places in host memory: pages and states of sequences that were preempted, and kept states that gave way.

What a preempted sequence leaves here is its own until it runs again or ends. A state of a prefix is only a copy worth
having: it gives way, the longest unused first, to either.
"""

from __future__ import annotations

from collections import OrderedDict, deque


class HostMemory:
    def __init__(self, pages: int, states: int) -> None:
        self.total_pages, self.total_states = pages, states
        self._free_pages = deque(range(pages))
        self._free_states = deque(range(states))
        self._spilled: OrderedDict[bytes, int] = OrderedDict()

    @property
    def spilled(self) -> int:
        return len(self._spilled)

    @property
    def held(self) -> int:
        """Pages of preempted sequences."""
        return self.total_pages - len(self._free_pages)

    def take_pages(self, count: int) -> list[int] | None:
        if count > len(self._free_pages):
            return None
        return [self._free_pages.popleft() for _ in range(count)]

    def take_state(self) -> int | None:
        if self._free_states:
            return self._free_states.popleft()
        return self._spilled.popitem(last=False)[1] if self._spilled else None

    def give_back(self, pages: list[int], state: int | None) -> None:
        self._free_pages.extend(pages)
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

    def check_integrity(self, pages: list[int], states: list[int]) -> None:
        """Raises AssertionError unless free + spilled + what preempted sequences hold are all places, each once."""
        if sorted([*self._free_pages, *pages]) != list(range(self.total_pages)):
            raise AssertionError(f"{self.total_pages} host pages, but {sorted(pages)} are held and others not free")
        if sorted([*self._free_states, *self._spilled.values(), *states]) != list(range(self.total_states)):
            raise AssertionError(f"{self.total_states} host states, but {sorted(states)} are held and others not free")

"""Slots of recurrent state: free, held by one sequence, or kept as the state at the end of some prefix.

A kept state is found by the hash of the last page before it. It is never shared: whoever finds it gets a copy in a slot
of its own. Kept states give way, the longest unused first, when a running sequence or a newer state needs the slot.
"""

from __future__ import annotations

from collections import OrderedDict, deque


class StateSlots:
    def __init__(self, slots: int) -> None:
        self.total = slots
        self._free = deque(range(slots))
        self._held: set[int] = set()
        self._kept: OrderedDict[bytes, int] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def available(self) -> int:
        """Slots that a sequence could take now."""
        return len(self._free) + len(self._kept)

    def make_room(self) -> tuple[bytes, int] | None:
        """See to it that a slot is free. What gave way, if anything: a prefix, and the slot its state is still in.

        The caller has looked at `available`.
        """
        if self._free:
            return None
        digest, slot = self._kept.popitem(last=False)
        self._free.append(slot)
        return digest, slot

    def take(self) -> int:
        """A slot for a running sequence, or for a state that its next step will write. The caller has made room."""
        slot = self._free.popleft()
        self._held.add(slot)
        return slot

    def release(self, slot: int) -> None:
        self._held.remove(slot)
        self._free.append(slot)

    def keeps(self, digest: bytes) -> bool:
        return digest in self._kept

    def find(self, digest: bytes) -> int | None:
        """The slot of a kept state, which now is the last to give way."""
        if digest not in self._kept:
            return None
        self._kept.move_to_end(digest)
        return self._kept[digest]

    def keep(self, digest: bytes, slot: int) -> None:
        """A held slot has the state at the end of a prefix, of which none is kept yet."""
        self._held.remove(slot)
        self._kept[digest] = slot

    def forget(self, digest: bytes) -> None:
        """Its prefix cannot be found any more."""
        slot = self._kept.pop(digest, None)
        if slot is not None:
            self._free.append(slot)

    def drop_kept(self) -> None:
        self._free.extend(self._kept.values())
        self._kept.clear()

    def check_integrity(self, held: list[int]) -> None:
        """Raises AssertionError unless free + held + kept = all, and `held` are the slots that are held."""
        if len(held) != len(set(held)) or set(held) != self._held:
            raise AssertionError(f"sequences hold state slots {sorted(held)}, counted are {sorted(self._held)}")
        slots = [*self._free, *self._held, *self._kept.values()]
        if sorted(slots) != list(range(self.total)):
            raise AssertionError(f"{self.total} state slots, but {sorted(slots)} are free, held or kept")

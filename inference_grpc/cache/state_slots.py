"""Slots of recurrent state: free, held by one running sequence, or kept as the state at the end of some prefix.

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

    def take(self, start: bytes | None = None) -> tuple[int, int | None]:
        """A slot for a running sequence, and the slot to copy its first state from: that of the kept state `start`.

        The copy is left out (None) where the sequence starts from nothing, or was given the kept state's own slot
        because there was no other. The caller has looked at `available`.
        """
        source = None if start is None else self._kept[start]
        if start is not None:
            self._kept.move_to_end(start)
        slot = self._free.popleft() if self._free else self._kept.popitem(last=False)[1]
        self._held.add(slot)
        return slot, None if source == slot else source

    def release(self, slot: int) -> None:
        self._held.remove(slot)
        self._free.append(slot)

    def keeps(self, digest: bytes) -> bool:
        return digest in self._kept

    def keep(self, digest: bytes) -> int | None:
        """A slot to copy a state into; None if it is kept already or running sequences hold every slot."""
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return None
        if not self.available:
            return None
        slot = self._free.popleft() if self._free else self._kept.popitem(last=False)[1]
        self._kept[digest] = slot
        return slot

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

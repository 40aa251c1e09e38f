"""Rows of sequences one after another: where each begins and ends, and in which slots their states are held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

BLOCK = 64  # rows of one sequence, counted from its first one here


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One sequence, for the plain forms."""

    rows: slice
    slot: int
    position: int  # of its first row
    stops: list[tuple[int, int]]  # after so many of its rows the state goes to a slot; after all of them to its own


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    starts: torch.Tensor  # int32 [sequences + 1]: rows
    slots: torch.Tensor  # int64 [sequences]: where each begins to read its state
    positions: torch.Tensor  # int64 [sequences]: of first rows
    blocks: torch.Tensor  # int32 [.., 2]: first row and end of each block
    stops: torch.Tensor  # int32 [.., 2]: row and slot; the state in front of that row goes there
    first_stops: torch.Tensor  # int32 [sequences + 1]
    longest: int

    def parts(self) -> Iterator[Part]:
        """Waits for the device."""
        stops, first_stops = self.stops.tolist(), self.first_stops.tolist()
        starts, slots, positions = self.starts.tolist(), self.slots.tolist(), self.positions.tolist()
        for number, (begin, end) in enumerate(pairwise(starts)):
            own = stops[first_stops[number] : first_stops[number + 1]]
            each = [(row - begin, slot) for row, slot in own]
            yield Part(slice(begin, end), slots[number], positions[number], each)


def make_ragged(
    lengths: Sequence[int],
    slots: Sequence[int],
    positions: Sequence[int],
    device: torch.device | str = "cpu",
    *,
    kept: Sequence[Mapping[int, int]] = (),
) -> Ragged:
    """`slots`: of each sequence's state, before and after. `kept`: further ones, that get the state after so many rows,
    a multiple of BLOCK."""
    starts = [0, *accumulate(lengths)]
    blocks: list[tuple[int, int]] = []
    stops: list[tuple[int, int]] = []
    first_stops = [0]
    for number, (begin, end) in enumerate(pairwise(starts)):
        blocks += [(at, min(at + BLOCK, end)) for at in range(begin, end, BLOCK)]
        keeps = sorted(kept[number].items()) if kept else []
        assert all(rows % BLOCK == 0 and 0 < rows <= end - begin for rows, _ in keeps), "a state is kept in a block"
        stops += [*((begin + rows, slot) for rows, slot in keeps), (end, slots[number])]
        first_stops.append(len(stops))

    def on_device(values: Sequence[object], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    return Ragged(
        on_device(starts, torch.int32),
        on_device(slots, torch.int64),
        on_device(positions, torch.int64),
        on_device(blocks, torch.int32).view(-1, 2),
        on_device(stops, torch.int32).view(-1, 2),
        on_device(first_stops, torch.int32),
        max(lengths, default=0),
    )

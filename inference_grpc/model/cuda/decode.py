"""Plain decoding through the fused step: one set of fixed buffers, and one graph, for each batch size and context.

Sizes are rounded up to a few; rows that only fill up point to the padding slot and page. A step for a size is built
when it is first needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference_grpc.core.batch import Chunk
from inference_grpc.core.staged import NO_PAGE
from inference_grpc.model.cuda.memory import DeviceMemory
from kernels.hybrid_step import MOST_ROWS, DecodeStep, Splits, StepShape, Trunk, default_config
from kernels.paths import Choice

BATCHES = (1, 2, 4, 8, 16, 32, 64, MOST_ROWS)
# Tokens that a block table has room for; a longer table costs empty programs and memory for partial sums.
CONTEXTS = (1024, 4096, 16384, 65536, 262144)


@dataclass(slots=True)
class HostInputs:
    """The numbers of a step before they go to the device, in one buffer that is copied at once where it is pinned."""

    numbers: torch.Tensor  # int64 [3, batch]: token, position, slot
    tables: (
        torch.Tensor
    )  # int32 [kinds, batch, pages]: the pages, and where the cache has two stages those in three bits

    @classmethod
    def make(cls, batch: int, pages: int, *, kinds: int = 1, pinned: bool) -> HostInputs:
        return cls(
            torch.zeros(3, batch, dtype=torch.int64, pin_memory=pinned),
            torch.zeros(kinds, batch, pages, dtype=torch.int32, pin_memory=pinned),
        )

    def fill(self, chunks: list[Chunk], memory: DeviceMemory, *, ahead: bool = False) -> None:
        """One row a chunk, in order; the rest is padding at position 0. `ahead`: one position further on, whose tokens
        are not known here."""
        used = len(chunks)
        tokens = [0 if ahead else chunk.sequence.token_ids[chunk.start] for chunk in chunks]
        self.numbers[0, :used] = torch.tensor(tokens)
        self.numbers[1, :used] = torch.tensor([chunk.start + ahead for chunk in chunks])
        self.numbers[2, :used] = torch.tensor([chunk.sequence.state_slot for chunk in chunks])
        self.numbers[:2, used:] = 0
        self.numbers[2, used:] = memory.padding_slot
        self._fill_table(self.tables[0], [chunk.sequence.page_ids for chunk in chunks], memory.padding_page)
        if memory.staging is not None:
            held = [chunk.sequence.three_bit_ids for chunk in chunks]
            self._fill_table(self.tables[1], held, memory.padding_three_bit)
            # A copy that its sequence does not hold is never read; kernels want a page all the same.
            for table, padding in zip(self.tables, (memory.padding_page, memory.padding_three_bit), strict=True):
                table.masked_fill_(table == NO_PAGE, padding)

    def _fill_table(self, table: torch.Tensor, held: list[list[int]], padding: int) -> None:
        used, width = len(held), table.shape[1]
        rows = [page_ids[:width] + [padding] * (width - len(page_ids)) for page_ids in held]
        table[:used] = torch.tensor(rows, dtype=torch.int32).view(used, width)
        table[used:] = padding


@dataclass(slots=True)
class _Built:
    step: DecodeStep
    graph: torch.cuda.CUDAGraph | None
    inputs: HostInputs


def batch_bucket(rows: int) -> int:
    """The least size that has room for the rows. At most MOST_ROWS."""
    return next(size for size in BATCHES if size >= rows)


def context_bucket(tokens: int, most: int) -> int:
    """The least context that has room for the tokens, or `most` where none of the usual ones is smaller."""
    return min(next((size for size in CONTEXTS if size >= tokens), most), most)


class DecodeSteps:
    def __init__(
        self,
        trunk: Trunk,
        shape: StepShape,
        memory: DeviceMemory,
        ways: Choice,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        invariant: bool,
        splits: Splits,
    ) -> None:
        self._splits = splits
        self._trunk, self._shape, self._memory = trunk, shape, memory
        self._cos, self._sin = cos, sin
        self._overlap, self._has_graphs, self._invariant = "overlap" in ways, "graphs" in ways, invariant
        self._built: dict[tuple[int, int], _Built] = {}
        self._copied: torch.cuda.Event | None = None
        if memory.device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, chunks: list[Chunk]) -> torch.Tensor:
        """Logits float32 [chunks, rows of the head] of chunks of one row each."""
        groups = [chunks[at : at + MOST_ROWS] for at in range(0, len(chunks), MOST_ROWS)]
        found = [self._run(group) for group in groups]
        return found[0] if len(found) == 1 else torch.cat(found)

    def prepare(self, batch: int, tokens: int) -> None:
        """Build the step for a size before it is needed."""
        self._step_for(batch_bucket(batch), self._pages(tokens))

    def ahead(self, chunks: list[Chunk], token_ids: torch.Tensor) -> torch.Tensor:
        """The step after that of these chunks, at most MOST_ROWS, with tokens that only the device knows."""
        return self._run(chunks, token_ids)

    def _run(self, chunks: list[Chunk], token_ids: torch.Tensor | None = None) -> torch.Tensor:
        is_ahead, memory = token_ids is not None, self._memory
        end = max(chunk.end for chunk in chunks) + is_ahead
        built = self._step_for(batch_bucket(len(chunks)), self._pages(end))
        if self._copied is not None:
            self._copied.synchronize()  # the last copy has left the host's buffers
        built.inputs.fill(chunks, memory, ahead=is_ahead)
        step, numbers = built.step, built.inputs.numbers
        for target, source in zip((step.token_ids, step.positions, step.slots), numbers, strict=True):
            target.copy_(source, non_blocking=True)
        for table, filled in zip((step.table, step.three_bit_table), built.inputs.tables, strict=False):
            table.copy_(filled, non_blocking=True)
        if token_ids is not None:
            step.token_ids[: len(chunks)] = token_ids
        if self._copied is not None:
            self._copied.record()
        if built.graph is not None:
            built.graph.replay()
        else:
            step.run()
        # The next step of this size writes here again.
        return step.logits[: len(chunks)].clone()

    def _pages(self, tokens: int) -> int:
        return -(-context_bucket(tokens, self._memory.most_tokens) // self._memory.page_tokens)

    def _step_for(self, batch: int, pages: int) -> _Built:
        if (batch, pages) not in self._built:
            config = default_config(self._trunk, batch, invariant=self._invariant, measured=self._splits)
            memory = self._memory
            step = DecodeStep(
                self._trunk,
                memory.layers,
                self._shape,
                self._cos,
                self._sin,
                batch,
                pages,
                config,
                self._overlap,
                staging=memory.staging,
            )
            kinds = 1 if memory.staging is None else 2
            inputs = HostInputs.make(batch, pages, kinds=kinds, pinned=memory.device.type == "cuda")
            inputs.fill([], memory)
            step.slots.fill_(memory.padding_slot)
            step.table.fill_(memory.padding_page)
            step.three_bit_table.fill_(memory.padding_three_bit)
            # Capturing runs the step once, on the padding alone.
            self._built[batch, pages] = _Built(step, step.capture() if self._has_graphs else None, inputs)
        return self._built[batch, pages]

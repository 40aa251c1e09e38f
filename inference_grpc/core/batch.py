"""The input of one step, chosen by the scheduler and read by the model; and what the sampler makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from inference_grpc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, start + count) of one sequence; its pages are held already."""

    sequence: Sequence
    start: int
    count: int
    # The scheduler: further choices of the request, which begin with this chunk's last row.
    forks: tuple[Sequence, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """Whether it reaches the end of the known tokens, so that the next one is sampled from its last row."""
        return self.end == len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a page or a state onto another, in every layer that has one of its kind.

    The side that `way` names as host is a place in host memory, the other one on the device.
    """

    kind: Literal["page", "state"]
    source: int
    target: int
    way: Literal["on_device", "to_host", "from_host"] = "on_device"


@dataclass(frozen=True, slots=True)
class Batch:
    chunks: list[Chunk]
    # The cache: to be done before anything else of the step, in this order.
    moves: list[Move] = field(default_factory=list)

    @property
    def sampling(self) -> list[Sequence]:
        """The sequences that get a token from this step: each chunk's own, then those that were forked off it."""
        return [sequence for chunk in self.chunks if chunk.samples for sequence in (chunk.sequence, *chunk.forks)]

    @property
    def logit_rows(self) -> list[int]:
        """For each of `sampling`, the row of logits it draws from: forks share the one of their chunk."""
        ends = [chunk for chunk in self.chunks if chunk.samples]
        return [row for row, chunk in enumerate(ends) for _ in range(1 + len(chunk.forks))]

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Log-probabilities are the model's own: before temperature, penalties, bias and constraint."""

    token_id: int
    logprob: float | None = None  # None: not asked for
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first

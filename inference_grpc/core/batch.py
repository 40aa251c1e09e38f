"""The input of one step, chosen by the scheduler and read by the model; and what the sampler makes of it."""

from __future__ import annotations

from dataclasses import dataclass

from inference_grpc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, start + count) of one sequence; its pages are held already."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """Whether it reaches the end of the known tokens, so that the next one is sampled from its last row."""
        return self.end == len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    chunks: list[Chunk]

    @property
    def sampling(self) -> list[Sequence]:
        """The sequences that get a token from this step, in the order of the rows of logits."""
        return [chunk.sequence for chunk in self.chunks if chunk.samples]

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Log-probabilities are the model's own: before temperature, penalties, bias and constraint."""

    token_id: int
    logprob: float | None = None  # None: not asked for
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first

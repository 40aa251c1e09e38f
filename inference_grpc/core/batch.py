"""The input of one step, chosen by the scheduler and read by the model; and what the sampler makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from inference_grpc.core.sequence import Sequence


# Not frozen: there are hundreds a step, and a frozen one takes twice as long to make.
@dataclass(slots=True, eq=False)
class Chunk:
    """Positions [start, start + count) of one sequence; its pages are held already."""

    sequence: Sequence
    start: int
    count: int
    # The scheduler: further choices of the request, which begin with this chunk's last row.
    forks: tuple[Sequence, ...] = ()
    # The scheduler: positions within it, each a whole number of blocks, at which the state goes to a slot too.
    kept: dict[int, int] = field(default_factory=dict)
    # The scheduler: how many drafts of the tokens after it have room in this step.
    room: int = 0
    # The drafter: the drafts, computed in the same step as rows of their own and kept as far as they prove right.
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Of what is known; drafts come after it."""
        return self.start + self.count

    @property
    def rows(self) -> int:
        return self.count + len(self.drafts)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Those at some of its positions, drafts too."""
        known = self.sequence.token_ids[start : min(stop, self.end)]
        return [*known, *self.drafts[max(start - self.end, 0) : max(stop - self.end, 0)]]

    @property
    def samples(self) -> bool:
        """Whether it reaches the end of the known tokens, so that the next one is sampled from its last row."""
        return self.start + self.count == len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a page (in FP8, where the cache has two stages), a three-bit page or a state onto another, in every layer
    that has one of its kind. A demotion encodes a page into a three-bit page.

    The side that `way` names as host is a place in host memory, the other one on the device.
    """

    kind: Literal["page", "three_bit", "state", "demotion"]
    source: int
    target: int
    way: Literal["on_device", "to_host", "from_host"] = "on_device"


class End(NamedTuple):
    """A sequence at the end of what is certain, the row of logits that its next token is drawn from, and the drafts of
    that token and those after it; the logits after each draft stand in the rows that follow."""

    sequence: Sequence
    row: int
    drafts: tuple[int, ...] = ()
    accepted: int = 0  # drafts of this step that proved right so far

    def after(self, token_id: int) -> End | None:
        """The end one token on, where that token was drafted."""
        if not self.drafts or self.drafts[0] != token_id:
            return None
        return End(self.sequence, self.row + 1, self.drafts[1:], self.accepted + 1)


@dataclass(frozen=True, slots=True)
class Batch:
    chunks: list[Chunk]
    # The cache: to be done before anything else of the step, in this order; the model takes out what it has done.
    moves: list[Move] = field(default_factory=list)

    @property
    def ends(self) -> list[End]:
        """The sequences that get a token from this step: each chunk's own, then those that were forked off it, which
        share its row of logits."""
        ends: list[End] = []
        row = 0
        for chunk in self.chunks:
            if chunk.samples:
                drafts = chunk.drafts
                ends.append(End(chunk.sequence, row, drafts))
                if chunk.forks:
                    ends += [End(fork, row) for fork in chunk.forks]
                row += 1 + len(drafts)
        return ends

    @property
    def sampling(self) -> list[Sequence]:
        return [end.sequence for end in self.ends]

    @property
    def tokens(self) -> int:
        """Without drafts."""
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Log-probabilities are the model's own: before temperature, penalties, bias and constraint."""

    token_id: int
    logprob: float | None = None  # None: not asked for
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first

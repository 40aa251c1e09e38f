"""Drafts of the next tokens of decoding sequences. The step that computes a token verifies them in the same pass.

A draft can only save time: what is said are the tokens that plain decoding would have drawn, and a draft is kept where
it is that token. Both drafters draft what a constraint allows only, since anything else would never be drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from inference_grpc.core.batch import Batch, Chunk, SampledToken
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence, TokenMatcher
from inference_grpc.engine.sampler import sample
from inference_grpc.model.interface import DraftLayerModel

# So many equal tokens in a row are taken for a place that was met before.
RUN_TOKENS: Final = 3
# Of a text that is met for the first time, the part that is looked at.
LOOK_BACK_TOKENS: Final = 16_384


class Drafter(Protocol):
    name: str  # for the log and GetInfo

    def draft(self, batch: Batch) -> None:
        """Put drafts on the chunks that have room for some, at most as many as there is room for."""


class DraftLayer:
    """Drafts by the model's own draft layer, one token of all sequences at a time.

    A draft is drawn as its token will be: with the same settings and the same random number. So the two are equal where
    the draft layer and the model agree, at any temperature.
    """

    name = "mtp"

    def __init__(self, model: DraftLayerModel) -> None:
        self._model = model

    def draft(self, batch: Batch) -> None:
        going = [_Lookahead(chunk) for chunk in batch.chunks if chunk.room]
        while going:
            logits = self._model.draft(Batch([each.chunk for each in going], batch.moves))
            for each, token in zip(going, sample(logits, going), strict=True):
                each.take(token)
            going = [each for each in going if each.goes_on]


class _Lookahead:
    """A sequence some drafts further on, as the sampler sees it. Penalties count what was said, drafts left out."""

    def __init__(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        self.chunk, self.goes_on = chunk, True
        self.sampling: SamplingParams = sequence.sampling
        self.prompt_ids, self.counts = sequence.prompt_ids, sequence.counts
        self.seed, self.max_tokens, self.top_logprobs = sequence.seed, sequence.max_tokens, -1
        self.matcher: TokenMatcher | None = sequence.matcher.ahead() if sequence.matcher is not None else None

    @property
    def generated(self) -> int:
        return self.chunk.sequence.generated + len(self.chunk.drafts)

    def take(self, token: object) -> None:
        """Where logits are not finite or a grammar is too complex, nothing more is drafted."""
        if not isinstance(token, SampledToken):
            self.goes_on = False
            return
        self.chunk.drafts += (token.token_id,)
        self.goes_on = len(self.chunk.drafts) < self.chunk.room
        if self.matcher is not None and self.goes_on:
            self.matcher.accept(token.token_id)
            self.goes_on = not self.matcher.is_done()


class PromptLookup:
    """Drafts what followed the last few tokens when they last stood in the prompt or the output: for models without a
    draft layer. It costs next to nothing, and is right where a text repeats itself."""

    name = "prompt lookup"

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Sequence, _Seen] = WeakKeyDictionary()

    def draft(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            if chunk.room:
                chunk.drafts = self._drafts(chunk)

    def _drafts(self, chunk: Chunk) -> tuple[int, ...]:
        sequence, token_ids = chunk.sequence, chunk.sequence.token_ids
        seen = self._seen.setdefault(sequence, _Seen({}, RUN_TOKENS))
        for place in range(max(seen.places, len(token_ids) - LOOK_BACK_TOKENS), len(token_ids)):
            seen.after[tuple(token_ids[place - RUN_TOKENS : place])] = place
        seen.places = max(seen.places, len(token_ids))
        place = seen.after.get(tuple(token_ids[-RUN_TOKENS:]), len(token_ids))
        drafts = token_ids[place : place + chunk.room]
        return tuple(drafts if sequence.matcher is None else _allowed(sequence.matcher, drafts))


@dataclass(slots=True)
class _Seen:
    """Of one sequence: the last place that followed a run of tokens, for all places before `places`."""

    after: dict[tuple[int, ...], int]
    places: int


def _allowed(matcher: TokenMatcher, token_ids: list[int]) -> Iterator[int]:
    """The first of them, as far as the constraint allows them."""
    if not token_ids:
        return
    ahead = matcher.ahead()
    with suppress(ValueError):
        for token_id in token_ids:
            ahead.accept(token_id)
            yield token_id

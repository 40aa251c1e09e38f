"""Whether a step that verifies drafts computes what plain decoding does: tried at the start, with the model itself.

Some texts are decoded one token at a time, then again with the same tokens as drafts, a wrong one among them now and
then, through the cache and the scheduler that will serve. Every row of logits has to have the same bits both times.
What it leaves in pages and slots is of no one: the cache that serves begins with all of them free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.core.batch import Batch, End
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.core.staged import StagedPages
from inference_grpc.engine.scheduler import Scheduler
from inference_grpc.model.interface import Model

# Tokens of the prompts; the first reaches into a second block, so that all ways of a hybrid are tried.
_PROMPTS: Final = (70, 9, 24)
_OUTPUT_TOKENS: Final = 12
# Where a cache has two stages, the first text comes to where rows begin to read three bits, but not beyond this.
_LONGEST: Final = 1024


@dataclass(frozen=True, slots=True)
class Room:
    """What the model has allocated."""

    pages: int
    page_tokens: int
    state_slots: int
    staged: StagedPages | None = None

    @property
    def longest_prompt(self) -> int:
        if self.staged is None:
            return self.pages * self.page_tokens // len(_PROMPTS) - self.page_tokens - _OUTPUT_TOKENS
        return self.staged.longest_pages(self.pages) * self.page_tokens - _OUTPUT_TOKENS

    @property
    def prompts(self) -> list[int]:
        """Their tokens."""
        first, *others = _PROMPTS
        if self.staged is not None:
            border = (self.staged.rule.anchors + self.staged.rule.recent) * self.page_tokens
            first = max(first, min(border, _LONGEST) - _OUTPUT_TOKENS // 2)
        return [min(tokens, self.longest_prompt) for tokens in (first, *others)]

    @property
    def step_tokens(self) -> int:
        together = sum(self.prompts)
        return together if self.staged is None else min(together, self.staged.step_tokens)


def why_not(model: Model, room: Room, draft_tokens: int) -> str:
    """Why no drafts may be verified here; empty where they may."""
    if room.longest_prompt < 1:
        return f"{room.pages} pages of {room.page_tokens} tokens are too few to try it"
    prompts = [[(7 * number + 3 * place) % model.vocabulary for place in range(tokens)]
               for number, tokens in enumerate(room.prompts)]  # fmt: skip
    plain = _decode(model, room, 0, prompts, [])
    drafted = _decode(model, room, draft_tokens, prompts, plain)
    for number, (expected, found) in enumerate(zip(plain, drafted, strict=True)):
        for place, (mine, theirs) in enumerate(zip(expected, found, strict=True)):
            if not torch.equal(mine, theirs):
                off = float((mine - theirs).abs().max())
                return f"logits of token {place} of text {number} differ by {off:.1e} from those of plain decoding"
    return ""


def _decode(
    model: Model, room: Room, draft_tokens: int, prompts: list[list[int]], known: list[list[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Logits behind each greedy token of each text. `known`: those of the same texts, to draft their tokens by."""
    cache = CacheCoordinator(
        pages=room.pages,
        page_tokens=room.page_tokens,
        state_slots=room.state_slots,
        block_tokens=model.block_tokens,
        draft_tokens=draft_tokens,
        staged=room.staged,
    )
    scheduler = Scheduler(
        cache,
        max_sequences=len(prompts),
        prefill_tokens=room.step_tokens,
        block_tokens=model.block_tokens,
        draft_tokens=draft_tokens,
    )
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    for number, prompt_ids in enumerate(prompts):
        scheduler.add(
            Sequence(
                key=number,
                choice=0,
                prompt_ids=prompt_ids,
                sampling=SamplingParams(),
                seed=0,
                max_tokens=_OUTPUT_TOKENS,
                arrival=number,
            )
        )
    while scheduler.has_work:
        batch = scheduler.schedule()
        _draft(batch, known, model.vocabulary)
        logits = model.forward(batch)
        scheduler.commit(batch)
        for end in batch.ends:
            _follow(scheduler, end, logits, found[end.sequence.key])
    return found


def _follow(scheduler: Scheduler, end: End, logits: torch.Tensor, found: list[torch.Tensor]) -> None:
    """Take the likeliest token, and those after it as long as they were drafted, and note where they came from."""
    sequence = end.sequence
    following: End | None = end
    while following is not None:
        end = following
        found.append(logits[end.row].clone())
        token_id = int(logits[end.row].argmax())
        sequence.append(token_id)
        following = end.after(token_id)
    if end.accepted:
        scheduler.accept(end)
    if sequence.generated == sequence.max_tokens:
        scheduler.remove(sequence)


def _draft(batch: Batch, known: list[list[torch.Tensor]], vocabulary: int) -> None:
    """The tokens that are known to follow, every fifth of them wrong."""
    for chunk in batch.chunks:
        places = range(chunk.sequence.generated, chunk.sequence.generated + chunk.room)
        likeliest = [int(known[chunk.sequence.key][place].argmax()) for place in places]
        chunk.drafts = tuple((token + (n % 5 == 4)) % vocabulary for n, token in zip(places, likeliest, strict=True))

"""The state of one choice of one request while it is in the engine. Plain Python; each field says who writes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from inference_grpc.core.request import SamplingParams

if TYPE_CHECKING:
    import torch


class TokenMatcher(Protocol):
    """The state of a constraint: which tokens may come next. `text/constraint.py` makes them."""

    def fill(self, bitmask: torch.Tensor, tokens_left: int | None = None) -> None:
        """int32 [ceil(vocabulary / 32)]: bit i % 32 of word i // 32 says whether token i may come next.

        `tokens_left`: how many more the output may have, that one included.
        """

    def accept(self, token_id: int) -> None: ...

    def is_done(self) -> bool: ...

    @property
    def is_cut(self) -> bool:
        """Whether it was led to a valid end for want of tokens."""

    def ahead(self) -> TokenMatcher:
        """One of its own at the same place, to try drafts on; it does not look at how many tokens are left."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    # Set at submission, constant afterwards.
    key: int  # of its request
    choice: int
    prompt_ids: list[int]
    sampling: SamplingParams
    seed: int  # always set: drawn for the request when it named none
    max_tokens: int
    tenant: str = ""
    priority: int = 0
    top_logprobs: int = -1  # -1: no log-probabilities; 0: of the sampled token only
    arrival: int = 0  # running number: earlier first
    matcher: TokenMatcher | None = None
    # The choices after the first wait for its `prompt_done`, then find the pages of the prompt by their prefix.
    leader: Sequence | None = None

    # The engine: prompt, then what was sampled.
    token_ids: list[int] = field(init=False)
    counts: Counter[int] = field(default_factory=Counter)  # of sampled tokens, for the penalties

    # The coordinator: pages in the order of positions, and how many tokens have their keys and values in them.
    page_ids: list[int] = field(default_factory=list)
    computed: int = 0
    # The coordinator, where the cache has two stages: copies in three bits, by page; NO_PAGE in either list where the
    # sequence holds no such copy. From `fp8_from` on, and of anchors, it holds the FP8 copies.
    three_bit_ids: list[int] = field(default_factory=list)
    fp8_from: int = 0
    page_hashes: list[bytes] = field(default_factory=list)  # of leading full pages, as far as they were asked for
    published: int = 0  # leading pages that can be found by prefix
    # The coordinator, for models with recurrent state: its slot while it runs, and one for the state after each draft.
    state_slot: int | None = None
    draft_slots: list[int] = field(default_factory=list)
    # The coordinator, while it waits after a preemption: where its first `computed` tokens lie in host memory.
    host_pages: list[int] = field(default_factory=list)
    host_three_bit: list[int] = field(default_factory=list)
    host_state: int | None = None
    # The coordinator: positions at which the state is to be kept, and the slots for those of the step under way.
    checkpoints: list[int] = field(default_factory=list)
    kept_slots: dict[int, int] = field(default_factory=dict)
    # The scheduler: the prompt has been computed once, or never will be; the step at which it was submitted.
    prompt_done: bool = False
    waits_since: int = 0
    # The scheduler: drafts that its next step may try, by how the last ones did; None before the first.
    draft_limit: int | None = None

    # The coordinator: tokens found by prefix at the first admission; None before it.
    cached_tokens: int | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def generated(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def remaining(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 means plain decode."""
        return len(self.token_ids) - self.computed

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.counts[token_id] += 1

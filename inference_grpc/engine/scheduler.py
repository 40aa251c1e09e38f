"""Who runs in the next step: continuous batching with chunked prefill, fair shares and preemption. No tensors here.

Where the cache has two stages, a sequence gets FP8 pages as its chunks come to them, and what it will take up to
the end of its known tokens is left for it when another one is admitted.

Every step takes one token of each decoding sequence and fills the rest of its token budget with chunks of prompts. A
waiting sequence is admitted when there are pages for all its known tokens and one more for each running sequence to
grow into (or, where the whole output is reserved, for all that any of them may yet say); for a model with recurrent
state a state slot too. When pages run out all the same, the least important
sequence gives its memory back and waits. It goes on as if nothing had happened: from host memory, or, where there is no
room, by computing its tokens again (often it finds its pages by prefix).

Where drafts are verified, each decoding sequence may have some in the step: one more than the last time if
all of those proved right, one less if none did. They take what is left of the token budget and free pages only, and
give the pages back: nothing gives way for a draft.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.cache.stale import Footprint
from inference_grpc.core.batch import Batch, Chunk, End
from inference_grpc.core.sequence import Sequence

# Steps of waiting that are worth one priority: whoever waits long enough comes before any newcomer.
AGING_STEPS = 512


class Scheduler:
    def __init__(
        self,
        cache: CacheCoordinator,
        *,
        max_sequences: int,
        prefill_tokens: int,
        block_tokens: int = 1,
        reserves_output: bool = False,
        draft_tokens: int = 0,
    ) -> None:
        """`block_tokens`: chunks of prompts end at multiples of it (see `model/interface.py`). `reserves_output`: admit
        only what has pages up to its last token, so that nothing has to be preempted. `draft_tokens`: drafts of one
        sequence that a step may verify."""
        self._cache = cache
        self._reserves_output = reserves_output
        self._max_sequences = max_sequences
        self._block_tokens = block_tokens
        self._draft_tokens = draft_tokens
        # Less than a block would never get on.
        self._step_tokens = max(prefill_tokens, block_tokens)
        self.running: list[Sequence] = []  # the most important first
        self._waiting = _FairQueue()
        self.preemptions = 0
        self.swaps = 0  # those of them that went to host memory

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self._waiting) > 0

    def sequences(self) -> list[Sequence]:
        return [*self.running, *self._waiting.sequences()]

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence, self.running)

    def remove(self, sequence: Sequence) -> None:
        """It is finished or unwanted; its pages go back. Repeating it changes nothing."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.prompt_done = True
        self._cache.release(sequence)
        self._waiting.forget_idle(sequence.tenant, self.running)

    def schedule(self) -> Batch:
        """The next step; empty only when there is nothing to do. Pages for all of it are held when it returns."""
        self._waiting.steps += 1
        if self._draft_tokens:
            self._take_back_pages_of_drafts()
        granted, page_tokens = 0, self._cache.page_tokens
        chunks: list[Chunk] = []
        prefill = self._step_tokens  # that sequences may get pages for, the most important first
        while granted < len(self.running):
            sequence = self.running[granted]
            tokens, held = self._cache.reach(sequence, prefill), len(sequence.page_ids) * page_tokens
            if tokens <= held or self._cache.extend(sequence, tokens):
                granted += 1
                if len(sequence.token_ids) - sequence.computed == 1:
                    chunks.append(Chunk(sequence, sequence.computed, 1))
                else:
                    prefill -= min(tokens - sequence.computed, prefill)
            else:
                self._preempt(self.running[-1])  # the least important; at last the sequence itself
        decoding = len(chunks)
        budget = self._step_tokens - decoding
        if self._draft_tokens:
            budget -= self._make_room_for_drafts(chunks, budget)
        # Prefill goes on even when decoding alone fills the budget, if slowly.
        least = max(self._cache.page_tokens, self._block_tokens)
        budget = max(budget, min(self._step_tokens, least))
        if decoding < len(self.running):
            for sequence in [sequence for sequence in self.running if sequence.remaining > 1]:
                budget -= self._add_prefill(chunks, sequence, budget)
        while budget >= self._block_tokens and len(self.running) < self._max_sequences:
            admitted = self._admit(budget)
            if admitted is None:
                break
            budget -= self._add_prefill(chunks, admitted, budget)
        for chunk in chunks[decoding:]:
            # After all that may be admitted: a state is kept where no running sequence wants the slot.
            chunk.kept = self._cache.keep_states(chunk.sequence, chunk.end)
        self._waiting.charge_step(chunks)
        return Batch(chunks, self._cache.take_moves())

    def commit(self, batch: Batch) -> None:
        """The step has run: what it computed is final."""
        for chunk in batch.chunks:
            sequence, end, drafts = chunk.sequence, chunk.start + chunk.count, len(chunk.drafts)
            self._cache.commit(sequence, end)
            if not sequence.prompt_done:
                sequence.prompt_done = end >= sequence.prompt_tokens
            if drafts:
                sequence.draft_limit = drafts - 1 or 1  # unless one proves right

    def accept(self, end: End) -> None:
        """The drafts up to `end`, at least one, proved right; the next, if there is one, did not or does not count."""
        sequence, _, drafts, accepted = end
        self._cache.accept(sequence, accepted)
        self._waiting.charge(sequence.tenant, accepted)
        sequence.draft_limit = accepted + len(drafts) if drafts else min(accepted + 1, self._draft_tokens)

    def _take_back_pages_of_drafts(self) -> None:
        """Those that proved wrong, before anybody else is refused a page."""
        page_tokens = self._cache.page_tokens
        for sequence in self.running:
            tokens = len(sequence.token_ids)
            if len(sequence.page_ids) * page_tokens - tokens >= page_tokens:
                self._cache.shrink(sequence, tokens)

    def _make_room_for_drafts(self, chunks: list[Chunk], budget: int) -> int:
        """On chunks that decode, as far as the budget and free pages allow; returns how many drafts there may be."""
        left, page_tokens = budget, self._cache.page_tokens
        for chunk in chunks:
            if left <= 0:
                break
            sequence = chunk.sequence
            tokens, prompt_tokens = len(sequence.token_ids), len(sequence.prompt_ids)
            if chunk.start < prompt_tokens:
                continue
            room = self._draft_tokens if sequence.draft_limit is None else sequence.draft_limit
            # The last token that it may say is drawn after the last draft.
            to_say = prompt_tokens + sequence.max_tokens - tokens - 1
            if room > to_say or room > left:
                room = min(to_say, left)
                if room <= 0:
                    continue
            held = len(sequence.page_ids) * page_tokens
            if tokens + room > held:
                room = min(room, held + self._cache.pool.available * page_tokens - tokens)
                if not self._cache.extend(sequence, tokens + room):
                    room = held - tokens
            chunk.room = room
            left -= room
        return budget - left

    def _add_prefill(self, chunks: list[Chunk], sequence: Sequence, budget: int) -> int:
        """Its next chunk, as long as the budget and its blocks allow; returns the tokens of it, 0 if none."""
        room = len(sequence.page_ids) * self._cache.page_tokens  # for all that is known, where the cache has one stage
        end = min(sequence.computed + budget, len(sequence.token_ids), room)
        blocks_end = sequence.prompt_tokens // self._block_tokens * self._block_tokens
        if end < blocks_end:
            end = end // self._block_tokens * self._block_tokens
        count = max(end - sequence.computed, 0)
        if count:
            is_whole = end == len(sequence.token_ids) == sequence.prompt_tokens
            forks = self._fork(sequence) if is_whole else ()
            chunks.append(Chunk(sequence, sequence.computed, count, forks))
        return count

    def _fork(self, leader: Sequence) -> tuple[Sequence, ...]:
        """Further choices of a prompt that this step completes start with it, as far as there is room."""
        forks: list[Sequence] = []
        for follower in self._waiting.followers(leader):
            reserve = self._reserve(follower) if self._reserves_output else Footprint()
            if len(self.running) >= self._max_sequences or not self._cache.fork(leader, follower, reserve=reserve):
                break
            self._waiting.remove(follower)
            insort(self.running, follower, key=_importance)
            follower.prompt_done = True
            forks.append(follower)
        return tuple(forks)

    def _admit(self, budget: int) -> Sequence | None:
        sequence = self._waiting.first()
        if sequence is None or not self._cache.admit(sequence, reserve=self._reserve(sequence), budget=budget):
            return None
        self._waiting.remove(sequence)
        insort(self.running, sequence, key=_importance)
        return sequence

    def _reserve(self, newcomer: Sequence) -> Footprint:
        """Pages that must be left for the running ones, and for a newcomer's output, when it is admitted."""
        cache = self._cache
        if not self._reserves_output and not cache.stale.staged:
            return Footprint(len(self.running))
        owed = [cache.owed(sequence, self._tokens_to_come(sequence)) for sequence in self.running]
        if self._reserves_output:
            known, whole = cache.footprint(len(newcomer.token_ids)), cache.footprint(self._tokens_to_come(newcomer))
            owed.append(Footprint(whole.pages - known.pages, whole.three_bit - known.three_bit))
        return Footprint(sum(each.pages for each in owed), sum(each.three_bit for each in owed))

    def _tokens_to_come(self, sequence: Sequence) -> int:
        """Up to its last one, where the whole output is reserved; else those known, and a page to grow into."""
        if self._reserves_output:
            return sequence.prompt_tokens + sequence.max_tokens
        return len(sequence.token_ids) + self._cache.page_tokens

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.swaps += self._cache.preempt(sequence)
        self._waiting.append_first(sequence)
        self.preemptions += 1


def _importance(sequence: Sequence) -> tuple[int, int]:
    return -sequence.priority, sequence.arrival


class _FairQueue:
    """Waiting sequences: by priority, then by the tenant that was served least, then in order of arrival. Waiting
    raises the priority, so nobody waits for ever behind others.

    A tenant's count of served tokens only matters while it has work; one that comes back starts level with the least
    served of the others, so idling earns nothing.
    """

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, deque[Sequence]]] = {}
        self._served: dict[str, int] = {}
        self.steps = 0  # counted by the scheduler

    def __len__(self) -> int:
        return sum(len(queue) for tenants in self._queues.values() for queue in tenants.values())

    def sequences(self) -> list[Sequence]:
        return [sequence for tenants in self._queues.values() for queue in tenants.values() for sequence in queue]

    def append(self, sequence: Sequence, running: list[Sequence]) -> None:
        if sequence.tenant not in self._served:
            active = {other.tenant for other in running}.union(*self._queues.values())
            self._served[sequence.tenant] = min((self._served.get(tenant, 0) for tenant in active), default=0)
        sequence.waits_since = self.steps
        self._queue_of(sequence).append(sequence)

    def append_first(self, sequence: Sequence) -> None:
        self._queue_of(sequence).appendleft(sequence)

    def first(self) -> Sequence | None:
        """The next to be admitted. Further choices of a request wait for the pages of its prompt."""
        fronts = (queue[0] for tenants in self._queues.values() for queue in tenants.values())
        ready = (front for front in fronts if front.leader is None or front.leader.prompt_done)
        return min(ready, key=self._turn, default=None)

    def _turn(self, sequence: Sequence) -> tuple[int, int, int]:
        aged = sequence.priority + (self.steps - sequence.waits_since) // AGING_STEPS
        return -aged, self._served[sequence.tenant], sequence.arrival

    def followers(self, leader: Sequence) -> list[Sequence]:
        queue = self._queues.get(leader.priority, {}).get(leader.tenant, ())
        return [sequence for sequence in queue if sequence.leader is leader]

    def remove(self, sequence: Sequence) -> None:
        tenants = self._queues.get(sequence.priority, {})
        queue = tenants.get(sequence.tenant)
        if queue is None or sequence not in queue:
            return
        queue.remove(sequence)
        if not queue:
            del tenants[sequence.tenant]
        if not tenants:
            del self._queues[sequence.priority]

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] = self._served.get(tenant, 0) + tokens

    def charge_step(self, chunks: list[Chunk]) -> None:
        served = self._served
        for chunk in chunks:
            tenant = chunk.sequence.tenant
            served[tenant] = served.get(tenant, 0) + chunk.count

    def forget_idle(self, tenant: str, running: list[Sequence]) -> None:
        """What it was served, if it has no work any more."""
        if not any(tenant in tenants for tenants in self._queues.values()) and all(
            sequence.tenant != tenant for sequence in running
        ):
            self._served.pop(tenant, None)

    def _queue_of(self, sequence: Sequence) -> deque[Sequence]:
        return self._queues.setdefault(sequence.priority, {}).setdefault(sequence.tenant, deque())

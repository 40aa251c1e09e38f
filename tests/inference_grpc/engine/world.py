"""The scheduler and the cache without a model: each step is taken as run, and checked by the shadow."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.core.batch import Batch, End
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.core.staged import NO_PAGE, StagedPages
from inference_grpc.engine.scheduler import Scheduler
from kernels.paged_attention.stage import Staging
from tests.inference_grpc.engine.shadow import ShadowModel

PAGE = 4


class World:
    """A scheduler whose steps run at once; each sampled token is 7 until a sequence has its fill."""

    def __init__(
        self,
        *,
        pages: int = 100,
        max_sequences: int = 8,
        prefill_tokens: int = 16,
        state_slots: int = 0,
        block_tokens: int = 1,
        host_pages: int = 0,
        host_states: int = 0,
        reserves_output: bool = False,
        draft_tokens: int = 0,
        right: float = 0.0,
        page_tokens: int = PAGE,
        staged: StagedPages | None = None,
    ) -> None:
        """`right`: how many of the drafts are."""
        self.page_tokens = page_tokens
        self.cache = CacheCoordinator(
            pages=pages,
            page_tokens=page_tokens,
            staged=staged,
            state_slots=state_slots,
            block_tokens=block_tokens,
            host_pages=host_pages,
            host_states=host_states,
            draft_tokens=draft_tokens,
        )
        self.scheduler = Scheduler(
            self.cache,
            max_sequences=max_sequences,
            prefill_tokens=prefill_tokens,
            block_tokens=block_tokens,
            reserves_output=reserves_output,
            draft_tokens=draft_tokens,
        )
        self.draft_tokens = draft_tokens
        self._chance, self._right = random.Random(1), right
        self.drafted = self.accepted = self.steps = 0
        self.shadow = ShadowModel(
            page_tokens=page_tokens,
            has_state=state_slots > 0,
            block_tokens=block_tokens,
            rule=staged.rule if staged else None,
        )
        self._rule = staged.rule if staged else None
        self.finished: list[Sequence] = []
        self.aborted: list[Sequence] = []
        self.prefill_tokens = max(prefill_tokens, block_tokens)
        self.least_tokens = max(page_tokens, block_tokens)
        self._arrivals = 0

    def add(
        self, prompt: list[int], *, output: int = 3, tenant: str = "ada", priority: int = 0, **rest: object
    ) -> Sequence:
        sequence = Sequence(
            key=self._arrivals,
            choice=0,
            prompt_ids=prompt,
            sampling=SamplingParams(),
            seed=0,
            max_tokens=output,
            tenant=tenant,
            priority=priority,
            arrival=self._arrivals,
            **rest,  # type: ignore[arg-type]
        )
        self._arrivals += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self, aborts: Mapping[int, int] = MappingProxyType({})) -> Batch:
        """`aborts`: by arrival, the step before which a sequence that is still there is taken out."""
        for sequence in self.scheduler.sequences():
            if aborts.get(sequence.arrival) == self.steps:
                self.scheduler.remove(sequence)
                self.aborted.append(sequence)
        self.steps += 1
        batch = self.scheduler.schedule()
        self._draft(batch)
        self.check(batch)
        self.shadow.forward(batch)
        ends: list[End | None] = [*batch.ends]
        self.scheduler.commit(batch)
        while any(ends):
            ends = [self._take(end) for end in ends if end is not None]
        self.cache.check_integrity(self.scheduler.sequences())
        return batch

    def _draft(self, batch: Batch) -> None:
        """7 is right; a drafter may draft less often than it may."""
        for chunk in batch.chunks:
            count = self._chance.randint(0, chunk.room)
            chunk.drafts = tuple(7 if self._chance.random() < self._right else 8 for _ in range(count))
            self.drafted += count

    def _take(self, end: End) -> End | None:
        sequence, following = end.sequence, end.after(7)
        sequence.append(7)
        is_over = sequence.generated >= sequence.max_tokens
        assert not (is_over and following), "a draft of the last token is of no use"
        if end.accepted and following is None:
            self.scheduler.accept(end)
            self.accepted += end.accepted
            assert sequence.remaining == 1, "all but the last token is computed"
        if is_over:
            self.scheduler.remove(sequence)
            self.finished.append(sequence)
        return following

    def check(self, batch: Batch) -> None:
        assert batch.chunks or not self.scheduler.has_work, "work is left, and nothing runs"
        assert len({id(chunk.sequence) for chunk in batch.chunks}) == len(batch.chunks)
        decoding = sum(1 for chunk in batch.chunks if chunk.sequence.remaining == 1)
        assert batch.tokens <= max(self.prefill_tokens, decoding + self.least_tokens)
        for chunk in batch.chunks:
            assert chunk.start == chunk.sequence.computed
            assert 0 < chunk.count <= chunk.sequence.remaining
            assert chunk.start + chunk.rows <= len(chunk.sequence.page_ids) * self.page_tokens
            assert len(chunk.drafts) <= chunk.room <= self.draft_tokens
            assert chunk.end + chunk.room < chunk.sequence.prompt_tokens + chunk.sequence.max_tokens
        for sequence in self.scheduler.running if self._rule else []:
            self._check_stages(sequence, self._rule)

    def _check_stages(self, sequence: Sequence, rule: Staging) -> None:
        """It holds in three bits what rows in its pages may read, and no more: a page that wrong drafts reached into
        has left no copy behind. What is read in FP8 from here on is held in FP8."""
        pages = range(len(sequence.page_ids))
        last_row = len(pages) * self.page_tokens - 1
        stale = [page for page in pages if not rule.is_fp8(last_row, page)]
        assert [page for page, page_id in enumerate(sequence.three_bit_ids) if page_id != NO_PAGE] == stale
        assert all(sequence.page_ids[page] != NO_PAGE for page in pages if rule.is_fp8(sequence.computed, page))

    def run(self, limit: int = 2000, aborts: Mapping[int, int] = MappingProxyType({})) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                return
            self.step(aborts)
        pytest.fail("the work does not come to an end")

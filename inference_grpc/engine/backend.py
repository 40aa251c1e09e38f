"""The torch engine behind the face that the server knows: it joins preparation (any thread) and the loop (its own)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inference_grpc.core.backend import BackendInfo, Prepared, StepRows
from inference_grpc.core.request import ChatPrompt, Request
from inference_grpc.engine.engine import Engine
from inference_grpc.engine.prepare import Preparer
from inference_grpc.engine.requests import PreparedRequest
from inference_grpc.model.saturation import ACTIVATIONS, KEYS_VALUES


class TorchBackend:
    """Implements `core.backend.Backend`. `facts` is what does not change while it runs."""

    def __init__(self, engine: Engine, preparer: Preparer, facts: BackendInfo) -> None:
        self.engine = engine
        self._preparer = preparer
        self._facts = facts

    def start(self, on_step: Callable[[StepRows], None], on_fault: Callable[[], None] = lambda: None) -> None:
        self.engine.start(on_step, on_fault)

    def prepare(self, request: Request) -> PreparedRequest:
        return self._preparer.prepare(request)

    def submit(self, key: int, prepared: Prepared) -> None:
        assert isinstance(prepared, PreparedRequest), "prepared by another backend"
        self.engine.submit(key, prepared)

    def cancel(self, key: int) -> None:
        self.engine.cancel(key)

    def count_tokens(self, prompt: ChatPrompt | str) -> int:
        return self._preparer.count_tokens(prompt)

    def info(self) -> BackendInfo:
        facts, counters, cache = self._facts, self.engine.counters, self.engine.cache
        return BackendInfo(
            model=facts.model,
            context_tokens=facts.context_tokens,
            max_sequences=facts.max_sequences,
            page_tokens=facts.page_tokens,
            pages_total=facts.pages_total,
            pages_free=cache.pool.available,
            three_bit_pages_total=facts.three_bit_pages_total,
            three_bit_pages_free=cache.stale.pool.available,
            pages_held=cache.pool.held,
            three_bit_pages_held=cache.stale.pool.held,
            running=len(self.engine.scheduler.running),
            waiting=self.engine.waiting,
            precision=facts.precision,
            draft_head=facts.draft_head,
            device=facts.device,
            weights_sha256=facts.weights_sha256,
            features=list(facts.features),
            prefix_hit_tokens=counters.prefix_hit_tokens,
            prompt_tokens=counters.prompt_tokens,
            completion_tokens=counters.completion_tokens,
            steps=counters.steps,
            drafted_tokens=sum(counters.drafted),
            accepted_tokens=sum(counters.accepted),
            drafted_per_position=list(counters.drafted),
            accepted_per_position=list(counters.accepted),
            runtime=f"torch {torch.__version__}",
            saturated={each.kind: each.count for each in (ACTIVATIONS, KEYS_VALUES)},
        )

    def close(self) -> None:
        self.engine.close()

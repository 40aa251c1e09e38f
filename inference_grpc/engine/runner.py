"""One step on the device: the forward pass, then sampling."""

from __future__ import annotations

from collections.abc import Callable

from inference_grpc.core.batch import Batch, SampledToken
from inference_grpc.engine.sampler import sample
from inference_grpc.errors import EngineError
from inference_grpc.model.interface import Model


class Runner:
    def __init__(self, model: Model) -> None:
        self._model = model
        # A GPU works on while the host does something else.
        self.runs_beside = model.device != "cpu"
        # Called in every step once all is under way and nothing is left but to wait.
        self.meanwhile: Callable[[], None] | None = None

    def run(self, batch: Batch) -> list[SampledToken | EngineError]:
        """One entry per sequence of `batch.sampling`, in order: its token, or why it cannot go on."""
        logits = self._model.forward(batch)
        if any(chunk.forks for chunk in batch.chunks):
            logits = logits[batch.logit_rows]
        return sample(logits, batch.sampling, on_device=self._model.samples_on_device, meanwhile=self.meanwhile)

    def clear_pages(self, page_ids: list[int]) -> None:
        self._model.clear_pages(page_ids)

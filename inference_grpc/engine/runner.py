"""One step on the device: the forward pass, then sampling."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inference_grpc.core.batch import Batch, SampledToken
from inference_grpc.engine.sampler import sample
from inference_grpc.errors import EngineError
from inference_grpc.model.interface import DeviceModel, Model


class Runner:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._device_model = model if isinstance(model, DeviceModel) else None
        # Whether the device works on while the host does something else.
        self.runs_beside = self._device_model is not None
        # Called in every step once all is under way and nothing is left but to wait.
        self.meanwhile: Callable[[], None] | None = None
        # Whether every sequence of this step keeps its memory in the next one.
        self.may_run_ahead: Callable[[], bool] = lambda: False

    def run(self, batch: Batch) -> list[SampledToken | EngineError]:
        """One entry per sequence of `batch.sampling`, in order: its token, or why it cannot go on."""
        logits = self._model.forward(batch)
        if any(chunk.forks for chunk in batch.chunks):
            logits = logits[batch.logit_rows]
        model = self._device_model
        if model is None:
            return sample(logits, batch.sampling)

        def beside(token_ids: torch.Tensor) -> None:
            if self.may_run_ahead():
                model.run_ahead(batch, token_ids)
            if self.meanwhile is not None:
                self.meanwhile()

        return sample(logits, batch.sampling, on_device=model.samples_on_device, beside=beside)

    def clear_pages(self, page_ids: list[int]) -> None:
        self._model.clear_pages(page_ids)

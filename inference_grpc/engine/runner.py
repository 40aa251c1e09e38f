"""One step on the device: drafts, the forward pass, then sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from inference_grpc.core.batch import Batch, End, SampledToken
from inference_grpc.engine.drafting import Drafter
from inference_grpc.engine.sampler import sample
from inference_grpc.errors import EngineError
from inference_grpc.model.interface import DeviceModel, Model


class Runner:
    def __init__(self, model: Model, drafter: Drafter | None = None) -> None:
        self._model = model
        self._drafter = drafter
        self._device_model = model if isinstance(model, DeviceModel) else None
        # Whether the device works on while the host does something else.
        self.runs_beside = self._device_model is not None
        # Called in every step once all is under way and nothing is left but to wait.
        self.meanwhile: Callable[[], None] | None = None
        # Whether every sequence of this step keeps its memory in the next one.
        self.may_run_ahead: Callable[[], bool] = lambda: False

    def draft(self, batch: Batch) -> None:
        """Put drafts of the tokens that will follow on its chunks, where there is room for some."""
        if self._drafter is not None:
            self._drafter.draft(batch)

    def run(self, batch: Batch) -> torch.Tensor:
        """Logits [rows, vocabulary] of the ends of known texts, and after each draft."""
        return self._model.forward(batch)

    def sample(self, batch: Batch, logits: torch.Tensor, ends: Sequence[End]) -> list[SampledToken | EngineError]:
        """One entry for each end, in order: the next token, or why the sequence cannot go on."""
        rows, sequences = [end.row for end in ends], [end.sequence for end in ends]
        if rows != list(range(len(logits))):
            logits = logits[rows]
        model = self._device_model
        if model is None:
            return sample(logits, sequences)

        def beside(token_ids: torch.Tensor) -> None:
            if self.may_run_ahead():
                model.run_ahead(batch, token_ids)
            if self.meanwhile is not None:
                self.meanwhile()

        return sample(logits, sequences, on_device=model.samples_on_device, beside=beside)

    def clear_pages(self, page_ids: list[int]) -> None:
        self._model.clear_pages(page_ids)

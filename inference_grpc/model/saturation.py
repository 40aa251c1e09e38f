"""Values that were beyond the range of a narrow format and were cut to it: counted, and told in the log.

A few of them change a text little; many say that a scale does not fit the model, which nothing else would show.
"""

from __future__ import annotations

import logging
from typing import Final

import torch

logger = logging.getLogger(__name__)


class Saturated:
    """Of one kind, since the start of the process. Written by the engine's thread only."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.count = 0
        self._told = 0

    def see(self, values: torch.Tensor, largest: float) -> None:
        """Count those of `values` that are beyond ±`largest`. Not for a GPU: it would wait for it."""
        self.add(int((values.abs() > largest).sum()))

    def add(self, count: int) -> None:
        """Told at the first of them, and whenever there are ten times as many."""
        self.count += count
        if self.count >= max(10 * self._told, 1):
            self._told = self.count
            logger.warning(
                "fp8_saturated kind=%s values=%d: they were cut to the format's range", self.kind, self.count
            )


ACTIVATIONS: Final = Saturated("activations")
KEYS_VALUES: Final = Saturated("keys_values")

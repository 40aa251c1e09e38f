"""What the engine knows of a model. A second family (hybrid attention with recurrent state) comes in behind this face.

A model owns its device memory: `allocate` makes the pages once, `forward` reads and writes them by the page ids of the
block tables in a `Batch`. The engine never touches a tensor of the cache. A family with recurrent state allocates its
state slots in `allocate` too and finds each sequence's slot on the sequence, as it finds the block table there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from inference_grpc.core.batch import Batch


class Model(Protocol):
    name: str
    vocabulary: int
    context_tokens: int
    precision: str
    device: str

    def allocate(self, *, pages: int, page_tokens: int) -> None:
        """Make the paged memory. Called once, before the first step."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """One step: writes the keys and values of every chunk, returns logits of `batch.sampling`, in order.

        float32 [len(batch.sampling), vocabulary], free for the caller to change. A row's bits depend on its own
        sequence only: not on the neighbours, the chunk borders or the page ids.
        """

    def clear_pages(self, page_ids: Sequence[int]) -> None:
        """Overwrite pages that may hold values that are not finite, so that no later reader meets them."""

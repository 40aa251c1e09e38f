from __future__ import annotations

import torch

PADDING = 100  # ids behind the vocabulary, as wide output layers have them


def ids_of(row: torch.Tensor) -> list[int]:
    """The ids whose bits are set."""
    found: list[int] = (
        ((row[:, None] >> torch.arange(32, dtype=torch.int32)) & 1).flatten().nonzero().flatten().tolist()
    )
    return found

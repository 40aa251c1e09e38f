"""Sampling through Triton, without a sort: two kernels a step."""

from __future__ import annotations

import torch

from kernels.sampling.reference import Sampling

_STEPS = (
    40  # bisections: the edge is then known to less than the distance of neighbouring floats at the usual magnitudes
)


def sample(
    logits: torch.Tensor, settings: Sampling, counts: torch.Tensor | None = None, bitmask: torch.Tensor | None = None
) -> torch.Tensor:
    """reference.sample on the device, without waiting for it: a row with nothing to choose from gets -1 instead of an
    error."""
    from kernels.sampling.device import draw_kernel, process_kernel

    batch, vocabulary = logits.shape
    block = 4096
    blocks = -(-vocabulary // block)
    x = torch.empty(batch, vocabulary, device=logits.device)
    most = torch.empty(batch, blocks, device=logits.device)
    chosen = torch.empty(batch, dtype=torch.int64, device=logits.device)
    if not batch:
        return chosen
    process_kernel[(batch, blocks)](
        logits,
        logits if counts is None else counts,
        logits if bitmask is None else bitmask,
        settings.temperature,
        settings.repetition,
        settings.presence,
        settings.frequency,
        x,
        most,
        vocabulary,
        0 if bitmask is None else bitmask.shape[1],
        HAS_COUNTS=counts is not None,
        HAS_MASK=bitmask is not None,
        BLOCK=block,
        num_warps=8,
    )
    draw_kernel[(batch,)](
        x,
        most,
        settings.temperature,
        settings.top_k,
        settings.top_p,
        settings.min_p,
        settings.seed,
        settings.position,
        chosen,
        vocabulary,
        blocks,
        STEPS=_STEPS,
        BLOCK=block,
        BLOCKS=1 << (blocks - 1).bit_length(),
        num_warps=16,
    )
    return chosen

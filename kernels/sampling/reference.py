"""From logits to a token in plain PyTorch: penalties, mask, temperature, top-k, top-p, min-p, and a draw by noise
that is a
function of seed, position and token id. README.md says why each step stands where it does."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """Settings of each row, tensors [B]. Neutral values: temperature 0 is greedy; top_k 0, top_p 1, min_p 0 keep
    everything;
    penalties 1, 0, 0 change nothing."""

    temperature: torch.Tensor
    top_k: torch.Tensor  # int32
    top_p: torch.Tensor
    min_p: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    seed: torch.Tensor  # int64, the low 32 bits count
    position: torch.Tensor  # int64, of the token to be drawn


def neutral(batch: int, device: torch.device | str = "cpu") -> Sampling:
    def full(value: float) -> torch.Tensor:
        return torch.full((batch,), value, device=device)

    def integers(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(batch, dtype=dtype, device=device)

    return Sampling(
        full(0.0),
        integers(torch.int32),
        full(1.0),
        full(0.0),
        full(1.0),
        full(0.0),
        full(0.0),
        integers(torch.int64),
        integers(torch.int64),
    )


def uniform(seed: torch.Tensor, position: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A number in (0, 1) for each seed, position and id: two rounds of a 32-bit mix. The same on every device."""
    mask = 0xFFFFFFFF

    def mix(x: torch.Tensor) -> torch.Tensor:
        x = x & mask
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & mask
        x = ((x ^ (x >> 15)) * 0x846CA68B) & mask
        return x ^ (x >> 16)

    row = mix(seed.to(torch.int64) ^ mix(position.to(torch.int64) + 0x9E3779B9))
    bits = mix(row ^ mix(ids.to(torch.int64) * 0x85EBCA6B))
    return ((bits >> 8).to(torch.float32) + 0.5) * 2.0**-24


def processed(
    logits: torch.Tensor, settings: Sampling, counts: torch.Tensor | None = None, bitmask: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits [B, V] in float32 after penalties (counts int32 [B, V] of the tokens so far) and the grammar's bitmask
    (int32
    [B, ceil(V / 32)], bit set: allowed), before temperature. Forbidden ids are -inf."""
    x = logits.to(torch.float32).clone()
    if counts is not None:
        used = counts > 0
        penalty = settings.repetition[:, None]
        x = torch.where(used, torch.where(x > 0, x / penalty, x * penalty), x)
        x = x - settings.frequency[:, None] * counts - settings.presence[:, None] * used
    if bitmask is not None:
        ids = torch.arange(x.shape[1], device=x.device)
        allowed = (bitmask[:, ids // 32] >> (ids % 32).to(torch.int32)) & 1
        x = x.masked_fill(allowed == 0, float("-inf"))
    return x


def keep(x: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Which of the tempered logits [V] may be drawn: the top_k largest, of those the smallest set of the largest
    whose mass
    reaches top_p, of those the ones of at least min_p times the largest probability. Ties at an edge are all kept."""
    kept = torch.isfinite(x)
    if top_k > 0:
        kept &= x >= x.topk(min(top_k, x.numel())).values[-1]
    probabilities = torch.where(kept, x, float("-inf")).softmax(0)
    if top_p < 1:
        ordered, _ = probabilities.sort(descending=True)
        before = ordered.cumsum(0) - ordered
        kept &= probabilities >= ordered[before < top_p].min()
    if min_p > 0:
        kept &= probabilities >= min_p * probabilities.max()
    return kept


def sample(
    logits: torch.Tensor, settings: Sampling, counts: torch.Tensor | None = None, bitmask: torch.Tensor | None = None
) -> torch.Tensor:
    """One id a row, int64 [B]. Greedy rows take the lowest id of the largest logit; others the largest of logit +
    Gumbel noise.

    Raises ValueError for a row without a single allowed or finite logit.
    """
    x = processed(logits, settings, counts, bitmask)
    if not bool(torch.isfinite(x).any(1).all()):
        raise ValueError("a row has no logit to choose from: the mask forbids everything, or the model produced NaN")
    ids = torch.arange(x.shape[1], device=x.device)
    chosen = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
    for b in range(x.shape[0]):
        row, temperature = x[b], float(settings.temperature[b])
        if temperature > 0:
            row = row / temperature
            kept = keep(row, int(settings.top_k[b]), float(settings.top_p[b]), float(settings.min_p[b]))
            noise = -torch.log(-torch.log(uniform(settings.seed[b], settings.position[b], ids)))
            row = torch.where(kept, row + noise, float("-inf"))
        chosen[b] = ids[row == row.max()].min()
    return chosen

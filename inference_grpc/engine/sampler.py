"""From logits to tokens, a batch at a time. A row's result depends on its own sequence alone, so it is reproducible:
the random number of a token is a function of the sequence's seed and the token's place in the output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import torch

from inference_grpc.core.batch import SampledToken
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import TokenMatcher
from inference_grpc.errors import DeviceFault, EngineError

# Below this, division by the temperature leaves nothing but the likeliest token.
GREEDY_BELOW: Final = 1e-5
# Candidates that are looked at before a whole vocabulary is sorted; enough for almost every nucleus.
CANDIDATES: Final = 512
_BLOCK: Final = 256
_MASK64: Final = (1 << 64) - 1


class Drawing(Protocol):
    """What a draw depends on beside the logits: a sequence, or one that is some drafts further on."""

    @property
    def prompt_ids(self) -> list[int]: ...
    @property
    def sampling(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def top_logprobs(self) -> int: ...
    @property
    def generated(self) -> int: ...
    @property
    def counts(self) -> Counter[int]: ...
    @property
    def matcher(self) -> TokenMatcher | None: ...


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    sequences: Sequence[Drawing],
    *,
    on_device: bool = False,
    beside: Callable[[torch.Tensor], None] | None = None,
) -> list[SampledToken | EngineError]:
    """One token per row of `logits` [sequences, vocabulary], which is changed; or why that sequence cannot go on.

    `on_device`: draw by the kernel of `kernels.sampling`, with its own random numbers. `beside` is called with the
    drawn ids, still on the device, when nothing is left but to wait for them.
    """
    errors: dict[int, EngineError] = {}
    largest = logits.amax(-1)
    logprobs = _logprobs(logits, sequences)
    for row, sequence in enumerate(sequences):
        try:
            _adjust(logits[row], sequence)
        except EngineError as error:  # a constraint that proves too complex to follow
            errors[row] = error
    token_ids = _likeliest(logits)
    random_rows = [row for row, sequence in enumerate(sequences) if sequence.sampling.temperature >= GREEDY_BELOW]
    if random_rows:
        draw = _draw_on_device if on_device else _draw
        token_ids[random_rows] = draw(logits[random_rows], [sequences[row] for row in random_rows])
    results = torch.stack([largest.double(), token_ids.double()])
    found, chosen = results.tolist() if beside is None else _wait(results, lambda: beside(token_ids))
    for row, value in enumerate(found):
        if not math.isfinite(value):
            errors.setdefault(row, DeviceFault("The model's output was not finite; the request cannot go on."))
    return [
        errors.get(row) or _describe(int(token_id), logprobs.get(row), sequences[row].top_logprobs)
        for row, token_id in enumerate(chosen)
    ]


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: as `argmax`, the lowest of equals; on a CPU a maximum is found ten times as fast as its place."""
    if logits.is_cuda or logits.shape[-1] % _BLOCK:
        return logits.argmax(-1)
    blocks = logits.view(logits.shape[0], -1, _BLOCK)
    best = blocks.amax(-1).argmax(-1)
    return best * _BLOCK + blocks[torch.arange(len(best)), best].argmax(-1)


def _wait(results: torch.Tensor, beside: Callable[[], None]) -> list[list[float]]:
    """The one wait of a step, for these numbers and not for what `beside` starts after them."""
    if results.device.type != "cuda":
        beside()
        return cast("list[list[float]]", results.tolist())
    host = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
    host.copy_(results, non_blocking=True)
    is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_there.record()
    beside()
    is_there.synchronize()
    return cast("list[list[float]]", host.tolist())


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice: each draws its own numbers, the first those of a request with one choice."""
    return seed & _MASK64 if choice == 0 else _mix((seed & _MASK64) ^ _mix(choice))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for the token at `position` of the output (SplitMix64 by counter)."""
    return (_mix((seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK64) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _logprobs(logits: torch.Tensor, sequences: Sequence[Drawing]) -> dict[int, torch.Tensor]:
    """By row, for the rows that want them."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.top_logprobs >= 0]
    return dict(zip(rows, logits[rows].log_softmax(-1), strict=True)) if rows else {}


def _describe(token_id: int, logprobs: torch.Tensor | None, top: int) -> SampledToken:
    if logprobs is None:
        return SampledToken(token_id)
    values, ids = logprobs.topk(top)
    likeliest = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return SampledToken(token_id, float(logprobs[token_id]), likeliest)


def _adjust(row: torch.Tensor, sequence: Drawing) -> None:
    """Penalties, then bias, then the constraint, which nothing may outweigh."""
    sampling, device = sequence.sampling, row.device
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*sequence.prompt_ids, *sequence.counts}), device=device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if sequence.counts and (sampling.presence_penalty or sampling.frequency_penalty):
        seen = torch.tensor(list(sequence.counts), device=device)
        counts = torch.tensor(list(sequence.counts.values()), dtype=torch.float32, device=device)
        row[seen] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.logit_bias:
        biased = torch.tensor(list(sampling.logit_bias), device=device)
        row[biased] += torch.tensor(list(sampling.logit_bias.values()), device=device)
    if sequence.matcher is not None:
        bitmask = torch.zeros(-(-row.shape[0] // 32), dtype=torch.int32)
        sequence.matcher.fill(bitmask, sequence.max_tokens - sequence.generated)
        bits = (bitmask.to(device)[:, None] >> torch.arange(32, dtype=torch.int32, device=device)) & 1
        row.masked_fill_(bits.flatten()[: row.shape[0]] == 0, -math.inf)


def _draw(logits: torch.Tensor, sequences: Sequence[Drawing]) -> torch.Tensor:
    """int64 [rows]: by temperature, top_k, top_p and min_p."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    temperature = column([sequence.sampling.temperature for sequence in sequences])
    top_k = column([sequence.sampling.top_k or math.inf for sequence in sequences])
    top_p = column([sequence.sampling.top_p for sequence in sequences])
    min_p = column([sequence.sampling.min_p for sequence in sequences])
    numbers = column([uniform(sequence.seed, sequence.generated) for sequence in sequences])
    # The maximum comes off first: a small temperature would overflow otherwise.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature.float()
    probabilities = scaled.softmax(-1)

    token_ids = torch.empty(len(sequences), dtype=torch.int64, device=logits.device)
    is_plain = ((top_k == math.inf) & (top_p >= 1.0) & (min_p <= 0.0))[:, 0]
    if is_plain.any():
        token_ids[is_plain] = _invert(probabilities[is_plain].double(), numbers[is_plain])
    # Each row decides for itself whether its candidates are enough, so neighbours cannot change what it draws from.
    filtered = (~is_plain).nonzero()[:, 0]
    for width in (min(CANDIDATES, logits.shape[1]), logits.shape[1]):
        if not len(filtered):
            break
        values, ids = probabilities[filtered].topk(width)
        values = values.double()
        before = values.cumsum(-1) - values  # mass of the likelier ones
        limit_k, limit_p, limit_min = top_k[filtered], top_p[filtered], min_p[filtered] * values[:, :1]
        is_kept = (torch.arange(width, device=logits.device) < limit_k) & (before < limit_p) & (values >= limit_min)
        is_kept[:, 0] = True
        is_settled = ~is_kept[:, -1] | (width == logits.shape[1]) | (limit_k[:, 0] <= width)
        picked = _invert(values.where(is_kept, 0.0), numbers[filtered])
        chosen = ids.gather(1, picked[:, None])[:, 0]
        token_ids[filtered[is_settled]] = chosen[is_settled]
        filtered = filtered[~is_settled]
    return token_ids


def _draw_on_device(logits: torch.Tensor, sequences: Sequence[Drawing]) -> torch.Tensor:
    """int64 [rows]: the same settings through the kernel; what is random differs from `_draw`, what is likely does
    not."""
    from kernels.sampling.reference import Sampling
    from kernels.sampling.sample import sample as draw

    rows = len(sequences)
    settings = [sequence.sampling for sequence in sequences]
    floats = [
        [each.temperature for each in settings],
        [each.top_p for each in settings],
        [each.min_p for each in settings],
        [1.0] * rows,
        [0.0] * rows,
    ]
    wholes = [
        [each.top_k for each in settings],
        [_signed32(sequence.seed) for sequence in sequences],
        [sequence.generated for sequence in sequences],
    ]
    temperature, top_p, min_p, ones, zeros = torch.tensor(floats, device=logits.device)
    top_k, seed, position = torch.tensor(wholes, dtype=torch.int64, device=logits.device)
    return draw(logits, Sampling(temperature, top_k.int(), top_p, min_p, ones, zeros, zeros, seed, position))


def _signed32(seed: int) -> int:
    """The low bits of a seed, after all of it had its say."""
    return (_mix(seed & _MASK64) & 0xFFFFFFFF) - (1 << 31)


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The first index whose cumulated weight exceeds its number's share of the total; never one of weight zero."""
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]
    targets = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, targets, right=True)[:, 0]

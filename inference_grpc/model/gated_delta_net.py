"""A Gated DeltaNet layer over a step's ragged rows: projections, short convolution, recurrence, gated norm.

Which form computes a row is decided by its position alone, so its bits do not depend on chunks, neighbours or prefix
hits: rows of the prompt that lie in a whole block of 64, counted from position 0, go through the chunked form; the rest
of the prompt and all that is generated go through the recurrence, one row after the other. That holds as long as chunks
of prompts end at multiples of 64 or at the end of the prompt, which the scheduler sees to; other chunks are computed
right, but may differ in the last bits.

Rows that are generated, and drafts of rows after them, are computed in rounds: the next row of every sequence at once.
The state after a draft goes to a slot of its own, so whoever finds the draft wrong goes on from the slot before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import silu

from inference_grpc.core.batch import Chunk
from inference_grpc.model.hybrid_config import CONV_TAPS, HybridConfig
from inference_grpc.model.linear import Linear
from inference_grpc.model.memory import StatePool
from kernels.gated_delta_rule.reference import CHUNK, chunked, gated_norm, gates, normalise

LANES = 64


@dataclass(frozen=True, slots=True)
class GatedDeltaNetWeights:
    in_projection: Linear  # rows: q, k, v, z
    gate_projection: Linear  # rows: b, a
    conv: torch.Tensor  # [4, q | k | v]
    a_log: torch.Tensor  # [padded to LANES]
    dt_bias: torch.Tensor  # [padded to LANES]
    norm: torch.Tensor  # [value size], not zero-centred
    out_projection: Linear


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the recurrence takes, [rows, heads, ...]; q and k are normalised and there is one for each value head."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    decay: torch.Tensor  # e^g
    beta: torch.Tensor

    def part(self, rows: slice | torch.Tensor) -> _Rows:
        return _Rows(self.q[rows], self.k[rows], self.v[rows], self.g[rows], self.decay[rows], self.beta[rows])


@dataclass(frozen=True, slots=True)
class Round:
    """One row of each of some sequences; it brings the state in the slot it reads forward into the one it writes."""

    rows: slice | torch.Tensor
    read: torch.Tensor  # int64 [rows]
    write: torch.Tensor  # int64 [rows]


def make_rounds(chunks: list[tuple[Chunk, slice]]) -> list[Round]:
    """Of the chunks that know one row; the others go by themselves."""
    left = [(rows.start, _slots(chunk)) for chunk, rows in chunks if chunk.count == 1]
    rounds: list[Round] = []
    number = 0
    while left:
        rows = torch.tensor([first + number for first, _ in left])
        read = torch.tensor([slots[max(number - 1, 0)] for _, slots in left])
        write = torch.tensor([slots[number] for _, slots in left])
        is_dense = number == 0 and int(rows[-1]) == len(left) - 1
        rounds.append(Round(slice(0, len(left)) if is_dense else rows, read, write))
        number += 1
        left = [(first, slots) for first, slots in left if len(slots) > number]
    return rounds


def gated_delta_net(
    x: torch.Tensor,  # [rows, hidden], normed
    weights: GatedDeltaNetWeights,
    config: HybridConfig,
    pool: StatePool,
    chunks: list[tuple[Chunk, slice]],
    rounds: list[Round],
) -> torch.Tensor:
    """[rows, hidden]. Reads and writes the slots of the chunks' sequences; `rounds` are those of `make_rounds`."""
    mixed = weights.in_projection(x)
    inputs = mixed[:, : config.conv_channels]
    z = mixed[:, config.conv_channels :].reshape(-1, config.value_heads, config.value_size)
    b, a = (pad_lanes(part) for part in weights.gate_projection(x).chunk(2, dim=-1))
    g, beta = gates(a, b, weights.a_log, weights.dt_bias)
    decay = g.exp()

    convolved = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    longer = [(chunk, rows) for chunk, rows in chunks if chunk.count > 1]
    for chunk, _ in chunks:
        # A slot keeps what its last sequence left. The position decides, not the number of rows: a first chunk may
        # have one row only.
        if chunk.start == 0:
            pool.state[_slot(chunk)] = 0.0
            pool.conv[_slot(chunk)] = 0.0
    for each in rounds:
        window = torch.cat([pool.conv[each.read], inputs[each.rows, None]], dim=1).transpose(0, 1)  # [4, rows, ...]
        convolved[each.rows] = _convolve(window.contiguous().unbind(0), weights.conv)
        pool.conv[each.write] = window[1:].transpose(0, 1)
    for chunk, rows in longer:
        # A chunk may be shorter than the window: then the new window keeps some of the old inputs.
        extended = torch.cat([pool.conv[_slot(chunk)], inputs[rows]])
        taps = [extended[tap : tap + chunk.count] for tap in range(CONV_TAPS)]
        convolved[rows] = _convolve(taps, weights.conv)
        for position, slot in [(chunk.end, _slot(chunk)), *chunk.kept.items()]:
            row = position - chunk.start
            pool.conv[slot] = extended[row : row + CONV_TAPS - 1]

    heads = slice(config.value_heads)
    data = _split(convolved, g[:, heads], decay[:, heads], beta[:, heads], config)
    out = torch.empty(x.shape[0], config.value_heads, config.value_size)
    for each in rounds:
        out[each.rows], pool.state[each.write] = _step(data.part(each.rows), pool.state[each.read])
    for chunk, rows in longer:
        out[rows] = _advance(data.part(rows), chunk, pool.state)
    normed = gated_norm(out, z, weights.norm, config.norm_epsilon)
    return weights.out_projection(normed.view(x.shape[0], -1))


def pad_lanes(values: torch.Tensor) -> torch.Tensor:
    """Widen rows to whole vectors: torch computes what is left over a vector by other functions, with other bits."""
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % LANES))


def _slot(chunk: Chunk) -> int:
    slot = chunk.sequence.state_slot
    assert slot is not None, "a running sequence of a model with state has a slot"
    return slot


def _slots(chunk: Chunk) -> list[int]:
    """Where the state goes after its row, and after each draft."""
    return [_slot(chunk), *chunk.sequence.draft_slots[: len(chunk.drafts)]]


def _convolve(taps: list[torch.Tensor] | tuple[torch.Tensor, ...], weights: torch.Tensor) -> torch.Tensor:
    """silu(sum of tap x weight), oldest first, in one order of sums for any number of rows."""
    total = taps[0] * weights[0]
    for tap, weight in zip(taps[1:], weights[1:], strict=True):
        total += tap * weight
    return silu(total)


def _split(
    convolved: torch.Tensor, g: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, config: HybridConfig
) -> _Rows:
    keys, shared = config.key_channels, config.value_heads // config.key_heads
    rows = convolved.shape[0]
    q, k = convolved[:, : 2 * keys].reshape(rows, 2, config.key_heads, config.key_size).unbind(1)
    q, k = normalise(q.contiguous(), k.contiguous())
    v = convolved[:, 2 * keys :].reshape(rows, config.value_heads, config.value_size)
    return _Rows(q.repeat_interleave(shared, 1), k.repeat_interleave(shared, 1), v, g, decay, beta)


def _advance(data: _Rows, chunk: Chunk, states: torch.Tensor) -> torch.Tensor:
    """Outputs of one sequence's rows, in order; its state in `states` [slots, heads, K, V] is brought forward in
    place."""
    outputs: list[torch.Tensor] = []
    state = states[_slot(chunk)]
    blocks_end = chunk.sequence.prompt_tokens // CHUNK * CHUNK
    row = 0
    while row < chunk.count:
        position = chunk.start + row
        whole = (min(blocks_end, chunk.end) - position) // CHUNK * CHUNK
        if position % CHUNK == 0 and whole > 0:
            part = data.part(slice(row, row + whole))
            output, after = chunked(
                part.q[None], part.k[None], part.v[None], part.g[None], part.beta[None], state[None]
            )
            outputs.append(output[0])
            for kept, slot in chunk.kept.items():
                states[slot] = after[0, (kept - position) // CHUNK - 1]
            state.copy_(after[0, -1])
            row += whole
        else:
            output, new = _step(data.part(slice(row, row + 1)), state[None])
            outputs.append(output)
            state.copy_(new[0])
            row += 1
    return torch.cat(outputs)


def _step(data: _Rows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence for one row of each sequence; outputs [rows, heads, V] and the new states.

    Products and sums are elementwise: a batched matrix product would take another kernel for one sequence than for two.
    """
    state = state * data.decay[..., None, None]
    seen = (state * data.k[..., None]).sum(-2)
    delta = data.beta[..., None] * (data.v - seen)
    state += data.k[..., None] * delta[..., None, :]
    return (state * data.q[..., None]).sum(-2), state

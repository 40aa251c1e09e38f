"""Gated delta rule in plain PyTorch: the recurrence, its chunked form, and the whole decode step.

README.md has the mathematics. Shapes: q, k [B, T, HK, K]; v [B, T, H, V]; g, beta [B, T, H]; state [B, H, K, V].
Value head h
uses key head h // (H / HK). q and k come in already normalised and scaled (`normalise`), g is the logarithm of the
decay.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.ragged import BLOCK, Ragged

CHUNK = BLOCK


def normalise(q: torch.Tensor, k: torch.Tensor, eps: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """l2-normalise q and k over the last axis (eps is added to the sum) and scale q by K^(-1/2)."""
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + eps) * q.shape[-1] ** -0.5
    return q, k * torch.rsqrt((k * k).sum(-1, keepdim=True) + eps)


def gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b), in the dtype of the arguments, at least float32."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    g = -a_log.to(dtype).exp() * F.softplus(a.to(dtype) + dt_bias.to(dtype))
    return g, torch.sigmoid(b.to(dtype))


def _expand(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.repeat_interleave(heads // x.shape[2], dim=2)


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token. Returns o [B, T, H, V] and the state after every token [B, T, H, K, V]."""
    heads = v.shape[2]
    q, k = _expand(q, heads), _expand(k, heads)
    outputs, states = [], []
    for t in range(v.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        seen = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        delta = beta[:, t, :, None] * (v[:, t] - seen)
        state = state + k[:, t, :, :, None] * delta[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        states.append(state)
    if not outputs:
        return v.new_zeros(v.shape), state.new_zeros((state.shape[0], 0, *state.shape[1:]))
    return torch.stack(outputs, dim=1), torch.stack(states, dim=1)


def chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same function in chunks of 64. Returns o [B, T, H, V] and the states at the end of each chunk [B, C, H, K,
    V]."""
    heads, tokens = v.shape[2], v.shape[1]
    q, k = _expand(q, heads).transpose(1, 2), _expand(k, heads).transpose(1, 2)  # [B, H, T, K]
    v, g, beta = v.transpose(1, 2), g.transpose(1, 2), beta.transpose(1, 2)
    outputs, states = [], []
    for start in range(0, tokens, CHUNK):
        end = min(start + CHUNK, tokens)
        qc, kc, vc = q[:, :, start:end], k[:, :, start:end], v[:, :, start:end]
        bc, total = beta[:, :, start:end, None], g[:, :, start:end].cumsum(-1)
        size = end - start
        lower = torch.ones(size, size, dtype=torch.bool, device=v.device).tril()
        # Masked before the exponential: the upper triangle would overflow.
        decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
        a = (bc * kc) @ kc.transpose(-1, -2) * decay
        eye = torch.eye(size, dtype=v.dtype, device=v.device)
        right = torch.cat([bc * vc, bc * total.exp()[..., None] * kc], dim=-1)
        solved = torch.linalg.solve_triangular(a.tril(-1) + eye, right, upper=False, unitriangular=True)
        u, w = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
        new = u - w @ state
        outputs.append((total.exp()[..., None] * qc) @ state + (qc @ kc.transpose(-1, -2) * decay) @ new)
        last = total[..., -1:, None]
        state = last.exp() * state + ((last - total[..., None]).exp() * kc).transpose(-1, -2) @ new
        states.append(state)
    if not outputs:
        return v.new_zeros(v.shape).transpose(1, 2), state.new_zeros((state.shape[0], 0, *state.shape[1:]))
    return torch.cat(outputs, dim=2).transpose(1, 2), torch.stack(states, dim=1)


def decode_step(
    mixed: torch.Tensor,
    state: torch.Tensor,
    state_in: torch.Tensor,
    state_out: torch.Tensor,
    conv: torch.Tensor,
    conv_slot: torch.Tensor,
    positions: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    *,
    key_heads: int,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Everything between the two projections of a layer, for `tokens` consecutive rows of each sequence.

    mixed [B, T, q | k | v | z | b | a]; state [slots, H, K, V], read at state_in [B], written at state_out [B, T]
    where that is
    not negative; conv [slots, R, channels]: the input of position p at p % R, read and written in place; positions
    [B] of
    the first rows; conv_weight [4, channels]. Returns [B, T, H V] after the gated norm, in mixed's dtype.
    """
    batch, tokens, _ = mixed.shape
    heads, size_k, size_v = state.shape[1:]
    channels = conv.shape[2]
    ring = conv.shape[1]
    if ring < tokens + 3:
        raise ValueError(f"a ring of {ring} inputs cannot take {tokens} rows: it needs {tokens + 3}")
    accumulate = torch.promote_types(state.dtype, torch.float32)
    out = mixed.new_empty(batch, tokens, heads * size_v)
    for b in range(batch):
        s = state[state_in[b]].to(accumulate)
        for t in range(tokens):
            row, position = mixed[b, t], int(positions[b]) + t
            inputs = conv[conv_slot[b]]
            inputs[position % ring] = row[:channels].to(conv.dtype)
            taps = torch.stack([inputs[(position - 3 + i) % ring] for i in range(4)]).to(accumulate)
            c = F.silu((taps * conv_weight.to(accumulate)).sum(0))
            keys, values = key_heads * size_k, heads * size_v
            q, k, v = c[:keys], c[keys : 2 * keys], c[2 * keys :]
            rest = row[channels:].to(accumulate)
            z, beta_in, a_in = rest[:values], rest[values : values + heads], rest[values + heads : values + 2 * heads]
            q, k = normalise(q.view(1, 1, key_heads, size_k), k.view(1, 1, key_heads, size_k), eps)
            g, beta = gates(a_in, beta_in, a_log, dt_bias)
            o, states = recurrent(q, k, v.view(1, 1, heads, size_v), g[None, None], beta[None, None], s[None])
            s = states[0, 0]
            if int(state_out[b, t]) >= 0:
                state[state_out[b, t]] = s.to(state.dtype)
            out[b, t] = gated_norm(o[0, 0], z.view(heads, size_v), norm_weight, eps).flatten().to(mixed.dtype)
    return out


def gated_norm(o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMS norm over the last axis, then weight, then silu(z). The weight is not zero-centred here."""
    o = o * torch.rsqrt((o * o).mean(-1, keepdim=True) + eps)
    return o * weight.to(o.dtype) * F.silu(z.to(o.dtype))


def recurrent_slots(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    state_in: torch.Tensor,
    state_out: torch.Tensor,
) -> torch.Tensor:
    """`recurrent` over a pool of states [slots, H, K, V]: sequence b starts from state_in[b], and the state after its
    row t goes
    to state_out[b, t] where that is not negative."""
    o, states = recurrent(q, k, v, g, beta, state[state_in].to(torch.promote_types(state.dtype, torch.float32)))
    for b in range(v.shape[0]):
        for t in range(v.shape[1]):
            if int(state_out[b, t]) >= 0:
                state[state_out[b, t]] = states[b, t].to(state.dtype)
    return o


def chunked_ragged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Ragged,
) -> torch.Tensor:
    """`chunked` over sequences packed one after another: q, k [T, HK, K], v [T, H, V], g, beta [T, H]; state [slots,
    H, K, V] is read and written in place, at each stop. Returns o [T, H, V]."""
    o = torch.empty_like(v)
    for part in rows.parts():
        at = part.rows
        if at.start == at.stop:
            continue
        own = state[part.slot, None]
        out, states = chunked(q[None, at], k[None, at], v[None, at], g[None, at], beta[None, at], own)
        o[at] = out[0].to(o.dtype)
        for end, slot in part.stops:
            state[slot] = states[0, -(-end // CHUNK) - 1]
    return o

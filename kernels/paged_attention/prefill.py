"""Causal attention of the last rows of sequences over keys and values that were gathered from their pages."""

from __future__ import annotations

import torch


def attend_masked(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """q [T, heads, D] of the last T of S tokens, keys and values [S, kv heads, D]; float32 [T, heads, D].

    Row t sees the first S - T + t + 1 tokens. The plain form: float32 under a mask.
    """
    new, heads, _ = q.shape
    span, kv_heads, _ = keys.shape
    shared = heads // kv_heads
    k, v = (x.float().repeat_interleave(shared, 1).transpose(0, 1) for x in (keys, values))
    hidden = torch.arange(span, device=q.device) > torch.arange(span - new, span, device=q.device)[:, None]
    mask = torch.zeros(new, span, device=q.device).masked_fill_(hidden, float("-inf"))
    attended = torch.nn.functional.scaled_dot_product_attention(q.float().transpose(0, 1), k, v, attn_mask=mask)
    return attended.transpose(0, 1)


def attend_flash(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    q_starts: torch.Tensor,
    key_starts: torch.Tensor,
    most_rows: int,
    most_keys: int,
) -> torch.Tensor:
    """The same in bfloat16 for packed sequences, through torch's flash attention, whose causal mask ends at the last
    key: q [T, heads, D], keys and values [S, kv heads, D], starts int32 [sequences + 1]; bfloat16 [T, heads, D].

    Keys are met in blocks at multiples from a sequence's first one, never in parts: a row's bits do not depend on the
    other rows, nor on how its prompt was cut.
    """
    attended: torch.Tensor = torch.ops.aten._flash_attention_forward(
        q, keys, values, q_starts, key_starts, most_rows, most_keys, 0.0, True, False
    )[0]
    return attended

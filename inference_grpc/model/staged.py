"""Keys and values in two stages on a CPU: `kernels/paged_attention` in its plain form.

Slow and right: rows are attended to one by one over their own pages, so a row's bits depend on its position alone. It
is there to serve tiny models and to be what the kernels of a GPU are held to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference_grpc.core.batch import Chunk, Move
from inference_grpc.core.staged import NO_PAGE, StagedPages
from inference_grpc.model.memory import KvFormat, KvPool, copy_place, host_places
from inference_grpc.model.quantization import to_e4m3
from inference_grpc.model.saturation import KEYS_VALUES
from kernels.paged_attention.cache import allocate, demote
from kernels.paged_attention.reference import attend
from kernels.turboquant.reference import signs


def kv_pool(
    *,
    pages: int,
    page_tokens: int,
    kv_heads: int,
    head_size: int,
    stored: KvFormat,
    host_pages: int,
    staged: StagedPages | None,
) -> KvPool | StagedPool:
    """Of one layer, in one stage or in two."""
    if staged is None:
        values = 2 * kv_heads * head_size
        return KvPool(pages=pages, page_tokens=page_tokens, values=values, stored=stored, host_pages=host_pages)
    return StagedPool(
        pages=pages,
        page_tokens=page_tokens,
        kv_heads=kv_heads,
        head_size=head_size,
        staged=staged,
        host_pages=host_pages,
    )


class StagedPool:
    """Keys and values of one layer. One page of each kind more than can be held pads block tables."""

    def __init__(
        self, *, pages: int, page_tokens: int, kv_heads: int, head_size: int, staged: StagedPages, host_pages: int = 0
    ) -> None:
        self.rule = staged.rule
        self.pools = allocate(pages + 1, staged.three_bit_pages + 1, kv_heads, page_tokens, head_size)
        self._padding = pages, staged.three_bit_pages
        self._signs = signs(head_size)
        fp8 = [pool.view(torch.uint8) for pool in (self.pools.keys, self.pools.values)]
        encoded = self.pools.three_bit_keys, self.pools.three_bit_values
        three_bit = [part for each in encoded for part in (each.codes, each.scale)]
        self._movable = {
            "page": [(part, host_places(part, host_pages)) for part in fp8],
            "three_bit": [(part, host_places(part, staged.host_three_bit_pages)) for part in three_bit],
        }

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """`rows` [n, keys | values] float32 to the token places `slots` [n] of FP8 pages."""
        _, kv_heads, page_tokens, size = self.pools.keys.shape
        narrow = to_e4m3(rotated(rows.view(-1, 2, kv_heads, size), self._signs), KEYS_VALUES).view(torch.uint8)
        at, offsets = slots // page_tokens, slots % page_tokens
        for (pool, _), new in zip(self._movable["page"], narrow.unbind(1), strict=True):
            pool[at, :, offsets] = new

    def attend(self, q: torch.Tensor, chunks: Sequence[tuple[Chunk, slice]], first: int) -> torch.Tensor:
        """[rows, heads * head size] of q [rows, kv heads, query heads of one kv head, head size], whose rows are those
        of the chunks and see positions from `first` on."""
        rows, kv_heads, shared, size = q.shape
        out = torch.empty(rows, kv_heads * shared * size)
        for chunk, at in chunks:
            held = zip((chunk.sequence.page_ids, chunk.sequence.three_bit_ids), self._padding, strict=True)
            fp8, three_bit = (
                torch.tensor([[padding if page_id == NO_PAGE else page_id for page_id in ids]], dtype=torch.int64)
                for ids, padding in held
            )
            heads = q[at].reshape(1, -1, kv_heads * shared, size)
            attended = attend(heads, self.pools, fp8, three_bit, torch.tensor([chunk.start]), self.rule, first=first)
            out[at] = attended.view(-1, kv_heads * shared * size)
        return out

    def clear(self, page_ids: Sequence[int]) -> None:
        for pool, _ in self._movable["page"]:
            pool[list(page_ids)] = 0

    def move(self, move: Move) -> None:
        if move.kind == "demotion":
            demote(self.pools, torch.tensor([move.source]), torch.tensor([move.target]))
            return
        for device, host in self._movable[move.kind]:
            copy_place(move, device, host)


def rotated(x: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """`kernels.turboquant.reference.rotate` of vectors [.., D] by additions alone, so that the bits of one do not
    depend on how many there are."""
    size = x.shape[-1]
    x, half = x.float() * sign, 1
    while half < size:
        a, b = x.view(*x.shape[:-1], size // (2 * half), 2, half).unbind(-2)
        x, half = torch.stack([a + b, a - b], dim=-2).flatten(-3), 2 * half
    return torch.div(x, size**0.5)

"""The two page pools of one attention layer, and what is written to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.turboquant.reference import Encoded, rotation

FP8_MAX = 448.0


@dataclass(frozen=True)
class PagePools:
    """Pages of one layer. Both stages hold K (after norm and RoPE) and V in the rotated basis: a query is rotated
    once, the
    output is rotated back once, and a page changes stage without being rotated again."""

    keys: torch.Tensor  # e4m3 [pages, kv_heads, page_tokens, D]
    values: torch.Tensor
    three_bit_keys: Encoded  # [pages, kv_heads, page_tokens, ...]
    three_bit_values: Encoded

    @property
    def page_tokens(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.three_bit_keys.nbytes + self.three_bit_values.nbytes


def allocate(
    fp8_pages: int, three_bit_pages: int, kv_heads: int, page_tokens: int, size: int, device: torch.device | str = "cpu"
) -> PagePools:
    """Pools of zeros. Page 0 of each is the null page: rows that only fill up a batch point to it."""

    def fp8() -> torch.Tensor:
        shape = (fp8_pages, kv_heads, page_tokens, size)
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)

    def three_bit() -> Encoded:
        shape = (three_bit_pages, kv_heads, page_tokens)
        return Encoded(
            torch.zeros(*shape, size // 4, dtype=torch.uint8, device=device),
            torch.zeros(*shape, size // 8, dtype=torch.uint8, device=device),
            torch.zeros(*shape, dtype=torch.float16, device=device),
        )

    return PagePools(fp8(), fp8(), three_bit(), three_bit())


def write(
    pools: PagePools, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor
) -> None:
    """Rotate K and V [T, kv_heads, D], round them to FP8 (saturating) and store token i at `offsets[i]` of page
    `pages[i]`."""
    turn = rotation(keys.shape[-1], keys.device).T
    for pool, new in ((pools.keys, keys), (pools.values, values)):
        rotated = (new.to(torch.float32) @ turn).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        # Advanced indexing moves the page and offset axes to the front: [T, kv_heads, D]. e4m3 has no index_put of
        # its own.
        pool.view(torch.uint8)[pages, :, offsets] = rotated.view(torch.uint8)


def demote(
    pools: PagePools, fp8_pages: torch.Tensor, three_bit_pages: torch.Tensor, *, form: str | None = None
) -> None:
    """Encode FP8 pages into three-bit pages. What is encoded is the FP8 copy, so it does not matter when that
    happens."""
    from kernels.dispatch import resolve

    encode = resolve("turboquant.encode", pools.keys.device, name=form)
    for source, target, scale in (
        (pools.keys, pools.three_bit_keys, "unbiased"),
        (pools.values, pools.three_bit_values, "least_squares"),
    ):
        encoded = encode(source.view(torch.uint8)[fp8_pages].view(torch.float8_e4m3fn).to(torch.float32), scale)
        target.low[three_bit_pages], target.signs[three_bit_pages] = encoded.low, encoded.signs
        target.scale[three_bit_pages] = encoded.scale

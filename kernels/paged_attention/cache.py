"""The two page pools of one attention layer, and what is written to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.turboquant.reference import Encoded, decode, encode, pack, quantize, rotation, unpack, values_of

FP8_MAX = 448.0


@dataclass(frozen=True, eq=False)
class PageMemory:
    """Pages of one layer, of a cache that has one stage. They hold K (after norm and RoPE) and V in the rotated basis:
    a query is rotated once, the output is rotated back once."""

    keys: torch.Tensor  # [pages, kv_heads, page_tokens, D], e4m3 or bf16
    values: torch.Tensor


@dataclass(frozen=True, eq=False)
class PagePools(PageMemory):
    """Pages of one layer in two stages, e4m3 and three bits, in one basis: a page changes stage without being rotated
    again."""

    three_bit_keys: Encoded  # planes [pages, kv_heads, page_tokens, ...]: codes of one token lie together
    three_bit_values: Encoded  # planes [pages, kv_heads, D, ...]: codes of one dimension lie together

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

    def three_bit(vectors: int, codes: int) -> Encoded:
        lead = three_bit_pages, kv_heads, vectors
        return Encoded(
            torch.zeros(*lead, codes // 4, dtype=torch.uint8, device=device),
            torch.zeros(*lead, codes // 8, dtype=torch.uint8, device=device),
            torch.zeros(three_bit_pages, kv_heads, page_tokens, dtype=torch.float16, device=device),
        )

    return PagePools(fp8(), fp8(), three_bit(page_tokens, size), three_bit(size, page_tokens))


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


def demote(pools: PagePools, fp8_pages: torch.Tensor, three_bit_pages: torch.Tensor) -> None:
    """Encode FP8 pages into three-bit pages. What is encoded is the FP8 copy, so it does not matter when that
    happens."""

    def rotated(pool: torch.Tensor) -> torch.Tensor:
        return pool.view(torch.uint8)[fp8_pages].view(torch.float8_e4m3fn).to(torch.float32)

    keys = encode(rotated(pools.keys), "unbiased")
    codes, scale = quantize(rotated(pools.values), "least_squares")
    values = Encoded(*pack(codes.transpose(-1, -2)), scale)
    for target, encoded in ((pools.three_bit_keys, keys), (pools.three_bit_values, values)):
        target.low[three_bit_pages], target.signs[three_bit_pages] = encoded.low, encoded.signs
        target.scale[three_bit_pages] = encoded.scale


def read_three_bit(pools: PagePools, page: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated keys and values of a page, or of pages [n], as a query sees them: f32 [.., kv_heads, page_tokens, D]."""
    k, v = pools.three_bit_keys, pools.three_bit_values
    keys = decode(Encoded(k.low[page], k.signs[page], k.scale[page]))
    codes = unpack(v.low[page], v.signs[page]).transpose(-1, -2)
    return keys, values_of(codes) * v.scale[page].to(torch.float32)[..., None]

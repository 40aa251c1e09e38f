"""The two page pools of one attention layer, and what is written to them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch

from kernels.turboquant.reference import BITS, Encoded, pack, quantize, rotation, unpack, values_of

FP8_MAX = 448.0
Kind = Literal["keys", "values"]


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

    three_bit_keys: Encoded  # codes [pages, kv_heads, 3 page_tokens D / 8], scale [pages, kv_heads, page_tokens]
    three_bit_values: Encoded

    @property
    def page_tokens(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.three_bit_keys.nbytes + self.three_bit_values.nbytes


@functools.cache
def operand_order(kind: Kind, page_tokens: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Which code of a page [page_tokens * D] stands where, in groups that are packed one by one, and the way back.

    Pages of 64 tokens and 256 dimensions stand as the lanes of a warp want them for the products of
    staged_attention.cu: eight codes of a lane after each other, four such eights, then lanes, then the four steps that
    `pack` takes together. Others are in their natural order, as one group.
    """
    order = torch.arange(page_tokens * size)
    if (page_tokens, size) != (64, 256):
        order = order.view(1, -1)
    elif kind == "keys":
        tokens_by_dimensions = order.view(4, 4, 2, 2, 4, 2, 2, 4, 4)  # token 16 a + 4 b + 2 c + d, dimension 64 e + ...
        order = tokens_by_dimensions.permute(4, 2, 5, 1, 3, 7, 0, 6, 8).reshape(4, -1)
    else:
        tokens_by_dimensions = order.view(2, 2, 4, 4, 4, 4, 2, 8)
        order = tokens_by_dimensions.permute(4, 6, 0, 7, 2, 5, 1, 3).reshape(4, -1)
    return order.to(device), order.flatten().argsort().to(device)


def allocate(
    fp8_pages: int, three_bit_pages: int, kv_heads: int, page_tokens: int, size: int, device: torch.device | str = "cpu"
) -> PagePools:
    """Pools of zeros. Page 0 of each is the null page: rows that only fill up a batch point to it."""

    def fp8() -> torch.Tensor:
        shape = (fp8_pages, kv_heads, page_tokens, size)
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)

    def three_bit() -> Encoded:
        lead = three_bit_pages, kv_heads
        return Encoded(
            torch.zeros(*lead, page_tokens * size * BITS // 8, dtype=torch.uint8, device=device),
            torch.zeros(*lead, page_tokens, dtype=torch.float16, device=device),
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


def demote(pools: PagePools, fp8_pages: torch.Tensor, three_bit_pages: torch.Tensor) -> None:
    """Encode FP8 pages into three-bit pages. What is encoded is the FP8 copy, so it does not matter when that
    happens."""

    def rotated(pool: torch.Tensor) -> torch.Tensor:
        return pool.view(torch.uint8)[fp8_pages].view(torch.float8_e4m3fn).to(torch.float32)

    def encode(kind: Kind, pool: torch.Tensor, target: Encoded) -> None:
        codes, scale = quantize(rotated(pool), "unbiased" if kind == "keys" else "least_squares")
        order, _ = operand_order(kind, codes.shape[-2], codes.shape[-1], codes.device)
        groups = codes.flatten(-2)[..., order.flatten()].view(*codes.shape[:-2], *order.shape)
        target.codes[three_bit_pages] = pack(groups).flatten(-2)
        target.scale[three_bit_pages] = scale

    encode("keys", pools.keys, pools.three_bit_keys)
    encode("values", pools.values, pools.three_bit_values)


def read_three_bit(pools: PagePools, page: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated keys and values of a page, or of pages [n], as a query sees them: f32 [.., kv_heads, page_tokens, D]."""

    def values(kind: Kind, encoded: Encoded) -> torch.Tensor:
        order, places = operand_order(kind, pools.page_tokens, pools.keys.shape[3], encoded.codes.device)
        packed, scale = encoded.codes[page], encoded.scale[page].to(torch.float32)
        groups = packed.view(*scale.shape[:-1], order.shape[0], packed.shape[-1] // order.shape[0])
        codes = unpack(groups).flatten(-2)[..., places].view(*scale.shape, pools.keys.shape[3])
        return values_of(codes) * scale[..., None]

    return values("keys", pools.three_bit_keys), values("values", pools.three_bit_values)

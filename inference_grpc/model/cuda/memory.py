"""What sequences hold on the device: pages of rotated keys and values, states, and the inputs of the convolution.

One page and one slot more than can be held pad tables and batches; nothing that is served reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from inference_grpc.core.batch import Move
from inference_grpc.core.staged import StagedPages
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.memory import copy_place, host_places
from inference_grpc.model.saturation import KEYS_VALUES
from kernels.hybrid_step import RING, DeltaMemory
from kernels.paged_attention.cache import PageMemory, PagePools, allocate, demote
from kernels.paged_attention.launch import demote_on_device

E4M3_MOST = 448.0
_E4M3_LAST = 0x7E  # its code
_COUNTED_ROWS = 1024  # at once: 32 MiB of keys and values of the 27B model


class DeviceMemory:
    def __init__(
        self,
        config: HybridConfig,
        *,
        pages: int,
        page_tokens: int,
        slots: int,
        host_pages: int = 0,
        host_states: int = 0,
        cache: torch.dtype,
        ring: torch.dtype,
        device: torch.device,
        staged: StagedPages | None = None,
    ) -> None:
        """`staged`: the second pool; then `cache` is e4m3 and `pages` are those in it."""
        self.page_tokens, self.padding_page, self.padding_slot = page_tokens, pages, slots
        self.device = device
        self.staging = staged.rule if staged else None
        self.padding_three_bit = staged.three_bit_pages if staged else 0
        # Of the longest text that its pages could hold.
        self.most_tokens = (staged.longest_pages(pages) if staged else pages) * page_tokens
        self.layers: list[DeltaMemory | PageMemory] = []
        for kind in config.layer_kinds:
            if kind == "linear_attention":
                heads = slots + 1, config.value_heads, config.key_size, config.value_size
                inputs = torch.zeros(slots + 1, RING, config.conv_channels, dtype=ring, device=device)
                self.layers.append(DeltaMemory(torch.zeros(heads, device=device), inputs))
            elif staged is not None:
                counts = pages + 1, staged.three_bit_pages + 1
                self.layers.append(allocate(*counts, config.kv_heads, page_tokens, config.head_size, device))
            else:
                sizes = pages + 1, config.kv_heads, page_tokens, config.head_size
                width = torch.tensor([], dtype=cache).element_size()
                whole = [torch.zeros(*sizes[:-1], sizes[-1] * width, dtype=torch.uint8, device=device) for _ in "kv"]
                self.layers.append(PageMemory(*(part.view(cache) for part in whole)))
        attention = [layer for layer in self.layers if isinstance(layer, PageMemory)]
        narrow = [pool for layer in attention for pool in (layer.keys, layer.values) if cache == torch.float8_e4m3fn]
        self._e4m3_pools = [pool.view(torch.uint8) for pool in narrow]
        self._saturated = torch.zeros((), dtype=torch.int64, device=device)
        self._fetched = torch.zeros((), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._told = 0
        # By kind of move: what is copied, as bytes or numbers that both sides can hold, and its places on the host.
        self._movable: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"page": [], "three_bit": [], "state": []}
        for layer in self.layers:
            if isinstance(layer, PageMemory):
                pools = [pool.view(torch.uint8) for pool in (layer.keys, layer.values)]
                self._movable["page"] += [(pool, host_places(pool, host_pages)) for pool in pools]
                if staged is not None and isinstance(layer, PagePools):
                    encoded = layer.three_bit_keys, layer.three_bit_values
                    parts = [part for each in encoded for part in (each.codes, each.scale)]
                    places = staged.host_three_bit_pages
                    self._movable["three_bit"] += [(part, host_places(part, places)) for part in parts]
            else:
                self._movable["state"] += [(part, host_places(part, host_states)) for part in (layer.state, layer.ring)]

    def move(self, moves: Sequence[Move]) -> None:
        """In their order, in every layer that has one of the kind; demotions that follow each other at once."""
        for is_demotion, group in groupby(moves, key=lambda move: move.kind == "demotion"):
            if is_demotion:
                self._demote(list(group))
                continue
            for move in group:
                for device, host in self._movable[move.kind]:
                    copy_place(move, device, host)

    def _demote(self, moves: Sequence[Move]) -> None:
        pages = torch.tensor([[move.source, move.target] for move in moves]).T
        sources, targets = pages.to(self.device, non_blocking=True).contiguous()
        for layer in self.layers:
            if isinstance(layer, PagePools) and layer.keys.is_cuda:
                demote_on_device(layer, sources, targets)
            elif isinstance(layer, PagePools):
                demote(layer, sources, targets)

    def count_saturated(self, pages: torch.Tensor, offsets: torch.Tensor) -> None:
        """Of rows that were just written: how many keys and values stand at the end of e4m3's range, whoever cut them.
        Tells what it found up to the call before, which is on the host by now, so that nobody waits."""
        known = int(self._fetched)
        if known > self._told:
            KEYS_VALUES.add(known - self._told)
            self._told = known
        for at in range(0, len(pages) if self._e4m3_pools else 0, _COUNTED_ROWS):
            rows = slice(at, at + _COUNTED_ROWS)
            written = torch.stack([pool[pages[rows], :, offsets[rows]] for pool in self._e4m3_pools])
            self._saturated += ((written & 0x7F) == _E4M3_LAST).sum()
        self._fetched.copy_(self._saturated, non_blocking=True)

    def clear_pages(self, page_ids: Sequence[int]) -> None:
        for layer in self.layers:
            if isinstance(layer, PageMemory):
                for pool in (layer.keys, layer.values):
                    pool.view(torch.uint8)[list(page_ids)] = 0

    def clear_slots(self, slots: Sequence[int]) -> None:
        """Before a sequence begins in a slot: it keeps what its last one left."""
        if slots:
            at = torch.tensor(slots, device=self.device)
            for layer in self.layers:
                if isinstance(layer, DeltaMemory):
                    layer.state.index_fill_(0, at, 0.0)
                    layer.ring.index_fill_(0, at, 0.0)


def write_rows(pool: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor, rows: torch.Tensor) -> None:
    """Rotated rows [R, kv heads, D] to their places; e4m3 saturates."""
    if pool.dtype == torch.float8_e4m3fn:
        narrow = rows.clamp(-E4M3_MOST, E4M3_MOST).to(pool.dtype).view(torch.uint8)
        pool.view(torch.uint8)[pages, :, offsets] = narrow
    else:
        pool[pages, :, offsets] = rows.to(pool.dtype)

"""What sequences hold on the device: pages of rotated keys and values, states, and the inputs of the convolution.

One page and one slot more than can be held pad tables and batches; nothing that is served reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference_grpc.core.batch import Move
from inference_grpc.model.hybrid_config import HybridConfig
from inference_grpc.model.memory import copy_place, host_places
from inference_grpc.model.saturation import KEYS_VALUES
from kernels.hybrid_step import RING, DeltaMemory, PageMemory

E4M3_MOST = 448.0
_E4M3_LAST = 0x7E  # its code


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
    ) -> None:
        self.page_tokens, self.padding_page, self.padding_slot = page_tokens, pages, slots
        self.device = device
        self.layers: list[DeltaMemory | PageMemory] = []
        for kind in config.layer_kinds:
            if kind == "linear_attention":
                heads = slots + 1, config.value_heads, config.key_size, config.value_size
                inputs = torch.zeros(slots + 1, RING, config.conv_channels, dtype=ring, device=device)
                self.layers.append(DeltaMemory(torch.zeros(heads, device=device), inputs))
            else:
                sizes = pages + 1, config.kv_heads, page_tokens, config.head_size
                width = torch.tensor([], dtype=cache).element_size()
                whole = [torch.zeros(*sizes[:-1], sizes[-1] * width, dtype=torch.uint8, device=device) for _ in "kv"]
                self.layers.append(PageMemory(*(part.view(cache) for part in whole)))
        self._saturated = torch.zeros((), dtype=torch.int64, device=device)
        self._fetched = torch.zeros((), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._told = 0
        # By kind of move: what is copied, as bytes or numbers that both sides can hold, and its places on the host.
        self._movable: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"page": [], "state": []}
        for layer in self.layers:
            if isinstance(layer, PageMemory):
                pools = [pool.view(torch.uint8) for pool in (layer.keys, layer.values)]
                self._movable["page"] += [(pool, host_places(pool, host_pages)) for pool in pools]
            else:
                self._movable["state"] += [(part, host_places(part, host_states)) for part in (layer.state, layer.ring)]

    def move(self, moves: Sequence[Move]) -> None:
        """In their order, in every layer that has one of the kind."""
        for move in moves:
            for device, host in self._movable[move.kind]:
                copy_place(move, device, host)

    def count_saturated(self, pages: torch.Tensor, offsets: torch.Tensor) -> None:
        """Of rows that were just written: how many keys and values stand at the end of e4m3's range, whoever cut them.
        Tells what it found up to the call before, which is on the host by now, so that nobody waits."""
        known = int(self._fetched)
        if known > self._told:
            KEYS_VALUES.add(known - self._told)
            self._told = known
        for layer in self.layers:
            if isinstance(layer, PageMemory) and layer.keys.dtype == torch.float8_e4m3fn:
                for pool in (layer.keys, layer.values):
                    sizes = pool.view(torch.uint8)[pages, :, offsets] & 0x7F
                    self._saturated += (sizes == _E4M3_LAST).sum()
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


def gather(pool: torch.Tensor, page_ids: torch.Tensor, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """The first `tokens` places of the pages in a row: [tokens, kv heads, D]."""
    width = pool.element_size()
    pages = pool.view(torch.uint8)[page_ids].permute(0, 2, 1, 3)
    places = pages.reshape(-1, pool.shape[1], pool.shape[3] * width)[:tokens]
    return places.view(pool.dtype).to(dtype)

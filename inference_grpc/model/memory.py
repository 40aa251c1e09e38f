"""Device memory of a model: pools of pages with keys and values, and of slots with recurrent state.

One page or slot more than can be held is never written: it pads block tables. Beside them lie places in host memory for
what preempted sequences leave. numpy's zeros cost no memory before they are written, torch's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from inference_grpc.core.batch import Move
from inference_grpc.model.quantization import to_e4m3
from inference_grpc.model.saturation import KEYS_VALUES
from kernels.paged_attention.stage import Staging

KvFormat = Literal["float32", "fp8", "staged"]


def cache_format(kv: str, staging: Staging | None) -> str:
    """As an operator reads it. The rule of a cache in two stages decides what is said, so it is told too."""
    if staging is None:
        return f"kv {kv}"
    return f"kv staged {staging.anchors} + {staging.recent} pages of {staging.page_tokens}"


def three_bit_bytes(values: int, head_size: int) -> int:
    """Of `values` keys and values of one token in three bits, with a float16 scale for each vector."""
    return values * 3 // 8 + 2 * (values // head_size)


class KvPool:
    """Keys and values of one layer: [pages + 1, page tokens, keys | values]. FP8 is e4m3 with a scale of one."""

    def __init__(
        self, *, pages: int, page_tokens: int, values: int, stored: KvFormat = "float32", host_pages: int = 0
    ) -> None:
        self.is_fp8 = stored == "fp8"
        dtype = np.uint8 if self.is_fp8 else np.float32
        self.pages = torch.from_numpy(np.zeros((pages + 1, page_tokens, values), dtype))
        self._host = host_places(self.pages, host_pages)
        self._rows = self.pages.view(-1, values)

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """`rows` [n, keys | values] float32 to the token places `slots` [n]."""
        self._rows.index_copy_(0, slots, to_e4m3(rows, KEYS_VALUES).view(torch.uint8) if self.is_fp8 else rows)

    def gather(self, page_ids: torch.Tensor) -> torch.Tensor:
        """[pages, page tokens, keys | values] float32"""
        gathered = self.pages.index_select(0, page_ids)
        return gathered.view(torch.float8_e4m3fn).float() if self.is_fp8 else gathered

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """[n, keys | values] float32 from the token places `slots` [n]."""
        rows = self._rows.index_select(0, slots)
        return rows.view(torch.float8_e4m3fn).float() if self.is_fp8 else rows

    def clear(self, page_ids: Sequence[int]) -> None:
        self.pages[list(page_ids)] = 0

    def move(self, move: Move) -> None:
        copy_place(move, self.pages, self._host)


class StatePool:
    """Recurrent state of one layer, float32 always: rounding it at every token ruins long texts."""

    def __init__(
        self,
        *,
        slots: int,
        heads: int,
        key_size: int,
        value_size: int,
        conv_inputs: int,
        channels: int,
        host_states: int = 0,
    ) -> None:
        self.state = torch.from_numpy(np.zeros((slots + 1, heads, key_size, value_size), np.float32))
        # The last inputs of the convolution, before it and its activation.
        self.conv = torch.from_numpy(np.zeros((slots + 1, conv_inputs, channels), np.float32))

        self._host = [host_places(part, host_states) for part in (self.state, self.conv)]

    def move(self, move: Move) -> None:
        for part, host in zip((self.state, self.conv), self._host, strict=True):
            copy_place(move, part, host)


def host_places(device: torch.Tensor, count: int) -> torch.Tensor:
    """`count` places of the kind that `device` [places, ...] has, in host memory; pinned where that is a GPU's."""
    shape = (count, *device.shape[1:])
    if device.is_cuda or not count:
        return torch.empty(shape, dtype=device.dtype, pin_memory=device.is_cuda)
    zeros = np.zeros(torch.Size(shape).numel() * device.element_size(), np.uint8)
    return torch.from_numpy(zeros).view(device.dtype).view(shape)


def copy_place(move: Move, device: torch.Tensor, host: torch.Tensor) -> None:
    """Nobody but later moves reads host places, so a GPU need not be waited for."""
    source = host if move.way == "from_host" else device
    target = host if move.way == "to_host" else device
    target[move.target].copy_(source[move.source], non_blocking=True)

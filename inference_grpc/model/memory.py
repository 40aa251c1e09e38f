"""Device memory of a model: pools of pages with keys and values, and of slots with recurrent state.

One page or slot more than can be held is never written: it pads block tables. numpy's zeros cost no memory before they
are written, torch's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from inference_grpc.model.quantization import to_e4m3

KvFormat = Literal["float32", "fp8"]


class KvPool:
    """Keys and values of one layer: [pages + 1, page tokens, keys | values]. FP8 is e4m3 with a scale of one."""

    def __init__(self, *, pages: int, page_tokens: int, values: int, stored: KvFormat = "float32") -> None:
        self.is_fp8 = stored == "fp8"
        dtype = np.uint8 if self.is_fp8 else np.float32
        self.pages = torch.from_numpy(np.zeros((pages + 1, page_tokens, values), dtype))
        self._rows = self.pages.view(-1, values)

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """`rows` [n, keys | values] float32 to the token places `slots` [n]."""
        self._rows.index_copy_(0, slots, to_e4m3(rows).view(torch.uint8) if self.is_fp8 else rows)

    def gather(self, page_ids: torch.Tensor) -> torch.Tensor:
        """[pages, page tokens, keys | values] float32"""
        gathered = self.pages.index_select(0, page_ids)
        return gathered.view(torch.float8_e4m3fn).float() if self.is_fp8 else gathered

    def clear(self, page_ids: Sequence[int]) -> None:
        self.pages[list(page_ids)] = 0

    def copy(self, source: int, target: int) -> None:
        self.pages[target] = self.pages[source]


class StatePool:
    """Recurrent state of one layer, float32 always: rounding it at every token ruins long texts."""

    def __init__(
        self, *, slots: int, heads: int, key_size: int, value_size: int, conv_inputs: int, channels: int
    ) -> None:
        self.state = torch.from_numpy(np.zeros((slots + 1, heads, key_size, value_size), np.float32))
        # The last inputs of the convolution, before it and its activation.
        self.conv = torch.from_numpy(np.zeros((slots + 1, conv_inputs, channels), np.float32))

    def copy(self, source: int, target: int) -> None:
        self.state[target] = self.state[source]
        self.conv[target] = self.conv[source]

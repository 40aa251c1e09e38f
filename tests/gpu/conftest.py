"""Tests that need an NVIDIA GPU of compute capability 9.0; elsewhere they are skipped."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def hopper() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    torch.manual_seed(11)

"""Where there is no GPU, Triton code runs in its interpreter; that is decided before any of it is imported."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20)


@pytest.fixture
def device() -> str:
    """Where Triton code runs: the GPU, or the CPU with the interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed; its forms are tested where it is")
    return "cuda" if torch.cuda.is_available() else "cpu"

"""Whether pages and states fit the memory that is free, and what would."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import torch

from inference_grpc.config import EngineConfig
from inference_grpc.model.interface import Model

_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")
_MIB: Final = 2**20


def free_bytes(device: str) -> int | None:
    """Of the device's memory, for a CPU within the limits of its container; None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        line = next((line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:")), "")
        found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # the limit may be the word "max"
        limit, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(limit - used)
    return min(found, default=None)


def refusal(config: EngineConfig, model: Model, state_slots: int, free: int | None) -> str | None:
    """Why the memory that the settings ask for cannot be had, and which settings could; None: it can."""
    page_bytes = config.page_tokens * model.page_token_bytes
    # One of each kind more than can be held pads tables.
    states = (state_slots + 1) * model.state_bytes
    needed = (config.pages + 1) * page_bytes + states
    if free is None or needed <= free:
        return None
    asked = f"ENGINE_PAGES={config.pages} of {page_bytes / _MIB:.2f} MiB"
    if model.state_bytes:
        asked += (
            f" and {state_slots} states of {model.state_bytes / _MIB:.2f} MiB "
            f"(ENGINE_MAX_SEQUENCES={config.max_sequences}, ENGINE_DRAFT_TOKENS={config.draft_tokens}, "
            f"ENGINE_CHECKPOINT_MIB={config.checkpoint_mib})"
        )
    what_fits = _what_fits(config, model, states, free, page_bytes)
    return f"{asked} take {needed / _MIB:.0f} MiB, {free / _MIB:.0f} MiB are free; {what_fits}"


def _what_fits(config: EngineConfig, model: Model, states: int, free: int, page_bytes: int) -> str:
    pages = (free - states) // page_bytes - 1
    if pages >= 2:
        return f"ENGINE_PAGES={pages} would fit."
    if not model.state_bytes:
        return "not even two pages fit."
    # Half of it for pages, the other half for states, of which one pads and one is kept.
    sequences = (free // 2 // model.state_bytes - 2) // (1 + config.draft_tokens)
    if sequences < 1:
        return "not even one sequence fits."
    pages = free // 2 // page_bytes - 1
    return f"ENGINE_MAX_SEQUENCES={sequences} with ENGINE_CHECKPOINT_MIB=0 and ENGINE_PAGES={pages} would fit."

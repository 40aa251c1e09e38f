"""Whether weights, and then pages and states, fit the memory that is free, and what would."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import torch

from inference_grpc.config import EngineConfig
from inference_grpc.engine.pools import Pools
from inference_grpc.model.interface import Model
from inference_grpc.model.load import Opened
from inference_grpc.model.memory import KvFormat
from inference_grpc.model.recipe import Recipe, read_recipe
from inference_grpc.model.sizes import cache_size, weight_bytes

_MEMINFO: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")
_MIB: Final = 2**20
_NARROWER: Final = ("bf16", "fp8", "nvfp4")  # built-in recipes, widest first


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


def weights_refusal(config: EngineConfig, opened: Opened, recipe: Recipe, free: int | None) -> str | None:
    """Why the weights cannot be loaded into `free` bytes of the device, and with what the model would fit; None: they
    can, with room for one sequence at least. By the headers alone; nothing has been loaded."""
    needed = weight_bytes(opened, recipe, config.device)
    if free is None or _room_left(config, opened, recipe.kv, free - needed) is not None:
        return None
    asked = (
        f"as ENGINE_PRECISION={config.precision} (--precision) they take about {needed / _MIB:.0f} MiB, "
        f"{free / _MIB:.0f} MiB are free; "
    )
    others = {name: read_recipe(name) for name in _NARROWER}
    sizes = {name: weight_bytes(opened, other, config.device) for name, other in others.items()}
    for name, other in others.items():
        if sizes[name] < needed and (room := _room_left(config, opened, other.kv, free - sizes[name])):
            return f"{asked}ENGINE_PRECISION={name} takes about {sizes[name] / _MIB:.0f} MiB and would fit with {room}."
    least = min(sizes, key=lambda name: sizes[name])
    if sizes[least] < needed:
        return f"{asked}even ENGINE_PRECISION={least} takes about {sizes[least] / _MIB:.0f} MiB: use a smaller model."
    return f"{asked}no precision takes less here: use a smaller model."


def _room_left(config: EngineConfig, opened: Opened, kv: KvFormat, rest: int) -> str | None:
    """The settings and the contexts that `rest` bytes are enough for; None: not for one sequence of two pages."""
    size = cache_size(opened.config, kv, config.device)
    page_bytes, sequences = config.page_tokens * size.token_bytes, config.max_sequences
    if size.state_bytes:  # half of it at most; one more pads, and one is kept
        sequences = min(sequences, rest // 2 // size.state_bytes - 2)
        rest -= (sequences + 2) * size.state_bytes
    pages = min(rest // page_bytes - 1, -(-sequences * opened.config.context_tokens // config.page_tokens))
    if sequences < 1 or pages < 2:
        return None
    checkpoints = ", ENGINE_CHECKPOINT_MIB=0" if size.state_bytes else ""
    return (
        f"ENGINE_MAX_SEQUENCES={sequences}{checkpoints} and ENGINE_PAGES={pages}: "
        f"{sequences} sequences of {pages * config.page_tokens // sequences} tokens each"
    )


def refusal(config: EngineConfig, model: Model, pools: Pools, state_slots: int, free: int | None) -> str | None:
    """Why the memory that the settings ask for cannot be had, and which settings could; None: it can."""
    page_bytes, three_bit_bytes = pools.page_bytes(model, config.page_tokens)
    # One of each kind more than can be held pads tables.
    states = (state_slots + 1) * model.state_bytes
    needed = pools.nbytes(model, config.page_tokens) + states
    if free is None or needed <= free:
        return None
    asked = f"ENGINE_PAGES={config.pages} of {page_bytes / _MIB:.2f} MiB"
    if pools.staged:
        stale = pools.staged.three_bit_pages
        asked += f" in FP8 ({pools.pages}) and {three_bit_bytes / _MIB:.2f} MiB in three bits ({stale})"
    if model.state_bytes:
        asked += (
            f" and {state_slots} states of {model.state_bytes / _MIB:.2f} MiB "
            f"(ENGINE_MAX_SEQUENCES={config.max_sequences}, ENGINE_DRAFT_TOKENS={config.draft_tokens}, "
            f"ENGINE_CHECKPOINT_MIB={config.checkpoint_mib})"
        )
    what_fits = _what_fits(config, model, pools, states, free)
    return f"{asked} take {needed / _MIB:.0f} MiB, {free / _MIB:.0f} MiB are free; {what_fits}"


def _what_fits(config: EngineConfig, model: Model, pools: Pools, states: int, free: int) -> str:
    page_bytes, three_bit_bytes = pools.page_bytes(model, config.page_tokens)
    if pools.staged:  # those in FP8 are for what runs, whatever the number of pages
        stale = (free - states - (pools.pages + 1) * page_bytes) // three_bit_bytes - 1
        if stale < 1:
            return "fewer ENGINE_MAX_SEQUENCES or ENGINE_KV_RECENT_PAGES take less in FP8."
        return f"ENGINE_PAGES={config.pages - pools.staged.three_bit_pages + stale} would fit."
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

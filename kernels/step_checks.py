"""What the gates of a whole decode step prove, on the GPU of this machine: its launches in every form they can take,
against each other."""

from __future__ import annotations

from typing import Any

DEVICE = "cuda"


def _small_step(kind: Any, *, overlap: bool) -> Any:
    import torch

    from kernels.benchmarks.random_trunk import random_memory, random_trunk, step_for

    torch.manual_seed(3)
    trunk, shape = random_trunk(kind, layers=4, device=DEVICE, vocabulary=4096)
    memory = random_memory(trunk, shape, slots=9, pages=41)
    step = step_for(trunk, memory, shape, batch=8, pages=5, overlap=overlap)
    step.token_ids.copy_(torch.arange(8, device=DEVICE) * 11)
    step.positions.copy_(torch.tensor([0, 1, 63, 64, 65, 200, 255, 300], device=DEVICE))
    step.slots.copy_(torch.arange(8, device=DEVICE))
    step.table.copy_(1 + torch.arange(40, dtype=torch.int32, device=DEVICE).view(8, 5))
    return step


def _logits(kind: str, *, overlap: bool, captured: bool = False) -> Any:
    """Of three steps one after another on the same memory."""
    import torch

    step = _small_step(kind, overlap=overlap)
    graph = None
    if captured:
        kept = [[part.clone() for part in vars(memory).values()] for memory in step.memory]
        graph = step.capture()
        torch.cuda.synchronize()
        for memory, parts in zip(step.memory, kept, strict=True):  # capturing runs the step once
            for part, before in zip(vars(memory).values(), parts, strict=True):
                part.copy_(before)
    found = []
    for _ in range(3):
        step.run() if graph is None else graph.replay()
        torch.cuda.synchronize()
        found.append(step.logits.clone())
        step.positions += 1
    return torch.stack(found)


def step_overlap() -> str:
    import torch

    from kernels.testing import assert_same_bits

    for kind in ("nvfp4", "fp8", "bf16"):
        plain = _logits(kind, overlap=False)
        if not bool(torch.isfinite(plain).all()) or not bool(plain.any()):
            raise AssertionError(f"{kind}: logits are not finite, or all zero")
        for _ in range(3):
            assert_same_bits(_logits(kind, overlap=True), plain, what=kind)
    return "three steps of four layers: overlapping launches equal serial ones in bits; nvfp4, fp8, bf16"


def step_graph() -> str:
    from kernels.testing import assert_same_bits

    for kind in ("nvfp4", "fp8", "bf16"):
        assert_same_bits(_logits(kind, overlap=True, captured=True), _logits(kind, overlap=False), what=kind)
    return "three replays equal three plain runs in bits; nvfp4, fp8, bf16"


def step_staged() -> str:
    """Contexts of which most pages are in three bits: the step reads them by its second table, captured or not."""
    import torch

    from kernels.benchmarks.random_trunk import random_trunk, staged_memory, step_for
    from kernels.hybrid_step import DeltaMemory
    from kernels.paged_attention.cache import PagePools
    from kernels.paged_attention.launch import demote_on_device
    from kernels.paged_attention.stage import Staging
    from kernels.testing import assert_same_bits

    batch, per, staging = 4, 20, Staging(64, 1, 2)
    torch.manual_seed(3)
    trunk, shape = random_trunk("nvfp4", layers=4, device=DEVICE, vocabulary=4096)
    memory = staged_memory(trunk, shape, slots=batch + 1, pages=1 + batch * per, three_bit_pages=1 + batch * per)
    every = torch.arange(1, 1 + batch * per, device=DEVICE)
    for layer in memory:
        if isinstance(layer, PagePools):
            for part in (layer.keys, layer.values):
                values = torch.randn(part.shape, device=DEVICE).to(part.dtype)
                part.view(torch.uint8).copy_(values.view(torch.uint8))
            demote_on_device(layer, every, every.flip(0).contiguous())

    def logits(rows: slice, staged: Staging, *, captured: bool = False, moved: int = 0) -> Any:
        count = len(range(batch)[rows])
        step = step_for(trunk, memory, shape, batch=count, pages=per, overlap=captured, invariant=True, staging=staged)
        step.token_ids.copy_((torch.arange(batch, device=DEVICE) * 11)[rows])
        step.positions.copy_(torch.tensor([1200, 700, 130, 0], device=DEVICE)[rows])
        step.slots.copy_(torch.arange(batch, device=DEVICE)[rows])
        step.table.copy_(every.to(torch.int32).view(batch, per)[rows])
        step.three_bit_table.copy_(every.flip(0).to(torch.int32).view(batch, per)[rows].roll(moved, 1))
        graph = step.capture() if captured else None
        torch.cuda.synchronize()
        for layer in memory:  # capturing runs the step, and every step moves states on
            if isinstance(layer, DeltaMemory):
                layer.state.zero_()
                layer.ring.zero_()
        step.run() if graph is None else graph.replay()
        torch.cuda.synchronize()
        return step.logits.clone()

    whole = slice(0, batch)
    plain = logits(whole, staging)
    if not bool(torch.isfinite(plain).all()) or not bool(plain.any()):
        raise AssertionError("logits are not finite, or all zero")
    assert_same_bits(logits(whole, staging, captured=True), plain, what="captured")
    for row in range(batch):
        assert_same_bits(logits(slice(row, row + 1), staging), plain[row : row + 1], what=f"sequence {row} alone")
    fp8 = logits(whole, Staging(64, per, 2))
    assert_same_bits(fp8[3:], plain[3:], what="a sequence without stale pages")
    if torch.equal(logits(whole, staging, moved=1)[0], plain[0]):
        raise AssertionError("the second table makes no difference")
    return "contexts of 1 to 1,201 tokens over both tables: captured equals plain, a row alone equals it in company"

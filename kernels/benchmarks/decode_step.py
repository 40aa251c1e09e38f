"""The decode step that the engine runs, at the shapes of the 27B model: random weights, one CUDA graph, each kind of
weights in the same launches. bf16 matrices go through torch's product between the same small kernels."""

from __future__ import annotations

import gc
from typing import Any, get_args

import torch

from kernels.benchmarks.library_step import LibraryStep, Scales, plain_fp8
from kernels.benchmarks.random_trunk import SHAPE_27B, random_memory, random_trunk, step_for
from kernels.benchmarks.shapes import KV_BYTES_A_TOKEN, STATE_BYTES, weight_bytes
from kernels.benchmarks.timing import median_graph_us
from kernels.hybrid_step import MOST_ROWS, DecodeStep, DeltaMemory, Kind, Splits, Trunk
from kernels.paged_attention.cache import PageMemory

DEVICE = "cuda"


def place(step: DecodeStep, context: int) -> None:
    """Every sequence at the position `context`, with pages and a slot of its own."""
    batch, pages = step.batch, step.pages
    step.positions.fill_(context)
    step.slots.copy_(torch.arange(batch, device=DEVICE))
    step.table.copy_(1 + torch.arange(batch * pages, device=DEVICE, dtype=torch.int32).view(batch, pages))
    step.token_ids.copy_(torch.arange(batch, device=DEVICE) + 1)


def bytes_read(kind: str, batch: int, context: int) -> dict[str, float]:
    return {
        "weights": weight_bytes(kind),
        "state": batch * STATE_BYTES * 2,
        "kv": batch * (context + 1) * KV_BYTES_A_TOKEN["fp8"],
    }


def measure_step(
    trunk: Trunk,
    memory: list[DeltaMemory | PageMemory],
    kind: Kind,
    batch: int,
    *,
    context: int = 640,
    measured: Splits | None = None,
    parts: bool = True,
) -> dict[str, Any]:
    """Milliseconds of a step and of its products and small kernels alone; at more than MOST_ROWS rows, of the groups
    in which the engine runs them."""
    groups = -(-batch // MOST_ROWS)
    pages = -(-(context + 1) // SHAPE_27B.page_tokens)
    step = step_for(trunk, memory, SHAPE_27B, batch=batch // groups, pages=pages, measured=measured)
    place(step, context)
    result: dict[str, Any] = {"kind": kind, "batch": batch, "bytes": bytes_read(kind, batch, context)}
    result["config"] = dict(step.config)
    graph = step.capture()
    result["us"] = median_graph_us(graph, repeats=15) * groups
    result["finite"] = bool(torch.isfinite(step.logits).all())
    for part in ("products", "small") if parts else ():
        step.only = part
        result[f"{part}_us"] = median_graph_us(step.capture(), repeats=7) * groups
    return result


@torch.inference_mode()
def measure_library(batches: tuple[int, ...], *, context: int = 640) -> list[dict[str, Any]]:
    """The step with FP8 products of torch's library, by row and with one multiplier a matrix."""
    trunk = plain_fp8(random_trunk("fp8")[0])
    memory = random_memory(trunk, SHAPE_27B, slots=max(batches), pages=1 + max(batches) * 11)
    pages = -(-(context + 1) // SHAPE_27B.page_tokens)
    found: list[dict[str, Any]] = []
    for batch in batches:
        ours = step_for(trunk, memory, SHAPE_27B, batch=batch, pages=pages)
        for scales in get_args(Scales):
            step = LibraryStep(
                trunk, memory, SHAPE_27B, ours.cos, ours.sin, batch, pages, ours.config, ours.overlap, scales=scales
            )
            place(step, context)
            found.append(
                {"scales": scales, "batch": batch, "us": median_graph_us(step.capture(), repeats=15)}
                | {"finite": bool(torch.isfinite(step.logits).all())}
            )
        del step, ours
    del trunk, memory
    gc.collect()
    torch.cuda.empty_cache()
    return found


def measure(kind: Kind, batches: tuple[int, ...], measured: Splits | None = None) -> list[dict[str, Any]]:
    start = torch.cuda.memory_allocated()
    trunk, shape = random_trunk(kind)
    weights = torch.cuda.memory_allocated() - start
    rows = min(max(batches), MOST_ROWS)
    memory = random_memory(trunk, shape, slots=rows, pages=1 + rows * 11)
    found = [
        measure_step(trunk, memory, kind, batch, measured=measured) | {"weights_bytes": weights} for batch in batches
    ]
    del trunk, memory
    gc.collect()
    torch.cuda.empty_cache()
    return found

"""Random weights at real shapes, already in the order of the decode kernels: what a step costs does not depend on them.

The values are such that a row keeps its size from layer to layer, so that logits stay finite over many steps.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from kernels.hybrid_step import (
    RING,
    AttentionLayer,
    DecodeStep,
    DeltaLayer,
    DeltaMemory,
    Embedding,
    Kind,
    Splits,
    StepLayer,
    StepMatrix,
    StepShape,
    Trunk,
    default_config,
)
from kernels.paged_attention.cache import PageMemory, allocate
from kernels.paged_attention.stage import Staging
from kernels.rotary.reference import rotary_table

SHAPE_27B = StepShape(
    hidden=5120,
    inner=17408,
    heads=24,
    kv_heads=4,
    head_size=256,
    key_heads=16,
    value_heads=48,
    value_size=128,
    page_tokens=64,
)
VOCABULARY_27B = 248320


def random_matrix(kind: str, rows: int, columns: int, device: str) -> StepMatrix:
    """Values whose products keep the size of what goes through."""
    size = columns**-0.5
    if kind == "bf16":
        values = torch.randn(rows, columns, device=device, dtype=torch.bfloat16).mul_(size)
        return StepMatrix("bf16", values, None, None, rows, columns)
    if kind == "nvfp4":
        codes = torch.randint(0, 256, (rows * columns // 2,), dtype=torch.uint8, device=device)
        # Unsigned e5m3 scales of 2^-1 to 2^2; the codes have a root mean square of 2.8.
        scales = torch.randint(72, 96, (rows * columns // 16,), dtype=torch.uint8, device=device)
        multiplier = torch.full((rows,), size / 6.0, device=device)
        return StepMatrix("nvfp4", codes, scales, multiplier, rows, columns)
    # All finite e4m3 bytes below 2: the exponent's top bit is cleared.
    values = torch.randint(-128, 127, (rows * columns,), dtype=torch.int8, device=device).bitwise_and_(-65)
    return StepMatrix("fp8", values.view(torch.uint8), None, torch.full((rows,), size, device=device), rows, columns)


def random_trunk(
    kind: Kind,
    *,
    layers: int = 64,
    device: str = "cuda",
    vocabulary: int = VOCABULARY_27B,
    shape: StepShape = SHAPE_27B,
) -> tuple[Trunk, StepShape]:
    """L L L F in turn, every matrix of one kind; the embedding in FP8 beside narrow matrices, else in bf16."""
    f32: dict[str, Any] = {"device": device, "dtype": torch.float32}

    def norm(size: int) -> torch.Tensor:
        return torch.randn(size, **f32) * 0.1

    def mixer(number: int) -> DeltaLayer | AttentionLayer:
        if number % 4 == 3:
            inward = (shape.heads + shape.kv_heads) * 2 * shape.head_size
            return AttentionLayer(
                random_matrix(kind, inward, shape.hidden, device),
                random_matrix(kind, shape.hidden, shape.heads * shape.head_size, device),
                norm(shape.head_size),
                norm(shape.head_size),
            )
        values = shape.value_heads * shape.value_size
        channels = 2 * shape.key_heads * shape.value_size + values
        inward = -(-(channels + values + 2 * shape.value_heads) // 64) * 64
        return DeltaLayer(
            random_matrix(kind, inward, shape.hidden, device),
            None,
            random_matrix(kind, shape.hidden, values, device),
            torch.randn(4, channels, **f32) * 0.3,
            torch.rand(shape.value_heads, **f32),
            torch.ones(shape.value_heads, **f32),
            torch.ones(shape.value_size, **f32),
        )

    made = [
        StepLayer(
            norm(shape.hidden),
            mixer(number),
            norm(shape.hidden),
            random_matrix(kind, 2 * shape.inner, shape.hidden, device),
            random_matrix(kind, shape.hidden, shape.inner, device),
        )
        for number in range(layers)
    ]
    rows = torch.randn(vocabulary, shape.hidden, device=device, dtype=torch.bfloat16)
    embedding = Embedding(rows)
    if kind != "bf16":
        embedding = Embedding(rows.to(torch.float8_e4m3fn), torch.ones(vocabulary, **f32))
    del rows
    return Trunk(embedding, made, norm(shape.hidden), random_matrix(kind, vocabulary, shape.hidden, device)), shape


def random_memory(
    trunk: Trunk, shape: StepShape, *, slots: int, pages: int, cache: Literal["fp8", "bf16"] = "fp8"
) -> list[DeltaMemory | PageMemory]:
    device = trunk.embedding.device
    dtype = torch.float8_e4m3fn if cache == "fp8" else torch.bfloat16
    made: list[DeltaMemory | PageMemory] = []
    for layer in trunk.layers:
        if isinstance(layer.mixer, DeltaLayer):
            heads = slots, shape.value_heads, shape.value_size, shape.value_size
            ring = torch.zeros(slots, RING, layer.mixer.conv.shape[1], device=device, dtype=torch.bfloat16)
            made.append(DeltaMemory(torch.zeros(heads, device=device), ring))
        else:
            sizes = pages, shape.kv_heads, shape.page_tokens, shape.head_size
            made.append(PageMemory(*(torch.zeros(sizes, device=device).to(dtype) for _ in range(2))))
    return made


def staged_memory(
    trunk: Trunk, shape: StepShape, *, slots: int, pages: int, three_bit_pages: int
) -> list[DeltaMemory | PageMemory]:
    """`random_memory` with pages in two stages."""
    sizes = pages, three_bit_pages, shape.kv_heads, shape.page_tokens, shape.head_size
    return [
        allocate(*sizes, trunk.embedding.device) if isinstance(layer, PageMemory) else layer
        for layer in random_memory(trunk, shape, slots=slots, pages=1)
    ]


def step_for(
    trunk: Trunk,
    memory: list[DeltaMemory | PageMemory],
    shape: StepShape,
    *,
    batch: int,
    pages: int,
    overlap: bool = True,
    invariant: bool = False,
    measured: Splits | None = None,
    staging: Staging | None = None,
) -> DecodeStep:
    cos, sin = rotary_table(pages * shape.page_tokens + 1, 64, 1e7, trunk.embedding.device)
    config = default_config(trunk, batch, invariant=invariant, measured=measured)
    return DecodeStep(trunk, memory, shape, cos, sin, batch, pages, config, overlap, staging=staging)

"""The shapes that are served: Qwen3.6-27B's matrices, state and cache. Nothing here imports torch."""

from __future__ import annotations

MODEL = "27B: 48 Gated DeltaNet and 16 attention layers"
LAYERS = 64
HIDDEN = 5120

# Rows and columns of each product of a decode step, and how often it happens in one.
PRODUCTS: dict[str, tuple[int, int, int]] = {
    "gdn_in": (16512, 5120, 48),  # q 2048, k 2048, v 6144, z 6144, b 48, a 48 and 32 rows of padding
    "attn_in": (14336, 5120, 16),  # query and gate 12288, k 1024, v 1024
    "out": (5120, 6144, 64),
    "gate_up": (34816, 5120, 64),
    "down": (5120, 17408, 64),
    "head": (248320, 5120, 1),
}
BYTES_A_WEIGHT = {"nvfp4": 9 / 16, "fp8": 1.0, "bf16": 2.0}
STATE_BYTES = 48 * 48 * 128 * 128 * 4  # of one sequence, fp32; a step reads and writes it
KV_BYTES_A_TOKEN = {"bf16": 65536, "fp8": 32768, "three_bit": 12544}


def weight_bytes(kind: str, head: str | None = None) -> float:
    """Bytes of the matrices that one decode step reads; the head may be of another kind."""
    total = 0.0
    for name, (rows, columns, count) in PRODUCTS.items():
        total += rows * columns * count * BYTES_A_WEIGHT[head if name == "head" and head else kind]
    return total


def weight_flops(rows_of_x: int) -> float:
    return 2.0 * rows_of_x * sum(rows * columns * count for rows, columns, count in PRODUCTS.values())

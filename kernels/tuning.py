"""The split of each product of the decode step, chosen in place by time: neighbours hide or show a kernel's start.

`python -m kernels.tuning` does that at the 27B model's shapes and keeps the splits under the key of this machine, as
gates are kept. They are read, not measured again, when an engine starts: a row's bits depend on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

from kernels.benchmarks.timing import median_graph_us
from kernels.gates import default_path as gates_path
from kernels.gates import key_of, record
from kernels.hybrid_step import Config, DecodeStep, Kind, Splits, StepMatrix, products_of, split_name
from kernels.native.gemm import FEW, MOST_PARTS, STREAM_TOKENS, WIDE, blocks_for, least_splits

LAYERS = 8
LEAST_BLOCKS = 100  # fewer do not keep the memory busy
# What an H200 found fastest, 2026-12-01; what a machine finds for itself goes before it.
H200: Splits = {
    "nvfp4 14336x5120 x 1": (1, 16),
    "nvfp4 14336x5120 x 8": (2, 4),
    "nvfp4 16512x5120 x 1": (1, 8),
    "nvfp4 16512x5120 x 8": (1, 8),
    "nvfp4 34816x5120 x 1": (2, 8),
    "nvfp4 34816x5120 x 8": (1, 16),
    "nvfp4 5120x17408 x 1": (4, 4),
    "nvfp4 5120x17408 x 8": (4, 4),
    "nvfp4 5120x6144 x 1": (2, 8),
    "nvfp4 5120x6144 x 8": (2, 8),
    "nvfp4 5120x6144 x 16": (7, WIDE),
    "nvfp4 5120x6144 x 32": (7, WIDE),
    "fp8 14336x5120 x 1": (1, 4),
    "fp8 14336x5120 x 8": (1, 8),
    "fp8 16512x5120 x 1": (2, 4),
    "fp8 16512x5120 x 8": (1, 4),
    "fp8 34816x5120 x 1": (1, 8),
    "fp8 34816x5120 x 8": (1, 16),
    "fp8 5120x17408 x 1": (3, 4),
    "fp8 5120x17408 x 8": (3, 4),
    "fp8 5120x6144 x 1": (2, 4),
    "fp8 5120x6144 x 8": (2, 8),
}
KINDS: tuple[Kind, ...] = ("nvfp4", "fp8")


def default_path() -> Path:
    return gates_path().with_name("splits.json")


def read_splits(key: str, path: Path | None = None) -> Splits:
    """What was measured under the key, over what one H200 measured."""
    try:
        found = json.loads((path or default_path()).read_text()).get(key, {})
        return H200 | {name: (int(splits), int(warps)) for name, (splits, warps) in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return dict(H200)


def candidates(matrix: StepMatrix, batch: int) -> list[tuple[int, int]]:
    """Ways to cut the product that keep most of the device busy."""
    found: list[tuple[int, int]] = []
    if batch <= STREAM_TOKENS and (batch <= FEW or matrix.columns % 256):
        least = least_splits(matrix.kind, matrix.columns, batch)
        warps = (16, 8, 4) if batch <= 8 else (8, 4) if batch <= 16 else (4,)
        for splits, k_warps in itertools.product(sorted({least, least + 1, 2 * least, 4}), warps):
            if splits >= least and matrix.columns // 64 // splits >= k_warps:
                found.append((splits, k_warps))
    if matrix.columns % 256 == 0:
        before = 0
        for parts in range(1, MOST_PARTS + 1):
            blocks = blocks_for(matrix.rows, matrix.columns, parts)
            if blocks >= LEAST_BLOCKS and blocks != before:
                found.append((parts, WIDE))
            before = 0 if parts == 1 else blocks  # one part is whole sets of rows: another way, not fewer blocks
    return found


def tune(step: DecodeStep) -> Config:
    """Leaves the fastest split of each product in the step's `config`, and returns it. Runs the step's first layers on
    what its buffers say; a second or two, and more where Triton has to compile."""
    best = median_graph_us(step.capture(LAYERS, head=False), repeats=5)
    for name, matrix in products_of(step.trunk).items():
        if matrix.kind == "bf16" or name == "head":
            continue
        for splits, k_warps in candidates(matrix, step.batch):
            if splits * matrix.rows > step.part_cells:
                continue
            before, step.config[name] = step.config[name], (splits, k_warps)
            took = median_graph_us(step.capture(LAYERS, head=False), repeats=5)
            if took < best:
                best = took
            else:
                step.config[name] = before
    return step.config


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.tuning", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16, 32, 128])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--file", type=Path, default=default_path(), help="where the splits are kept")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        parser.error("the products that are split need a GPU of compute capability 9.0")
    from kernels.benchmarks.decode_step import place
    from kernels.benchmarks.random_trunk import random_memory, random_trunk, step_for

    key = key_of(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    for kind in options.kinds:
        trunk, shape = random_trunk(kind, layers=LAYERS, vocabulary=4096)
        memory = random_memory(trunk, shape, slots=max(options.batches), pages=1 + max(options.batches) * 11)
        for batch in options.batches:
            began = time.monotonic()
            step = step_for(trunk, memory, shape, batch=batch, pages=11)
            place(step, 640)
            config = tune(step)
            found = {split_name(products_of(trunk)[name], batch): list(pair) for name, pair in config.items()}
            record(key, {name: pair for name, pair in found.items() if "4096x" not in name}, options.file)
            sys.stdout.write(f"{kind}, batch {batch} ({time.monotonic() - began:.1f} s): {config}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

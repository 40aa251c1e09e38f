"""The decode step alone, by kind of weights and batch: `python -m benchmarks.gpu.steps RESULTS.json [KIND ...]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch

from kernels.benchmarks.decode_step import measure, measure_library
from kernels.gates import key_of
from kernels.hybrid_step import Kind
from kernels.tuning import read_splits

BATCHES = (8, 1, 32, 128, 16)


def main(results: Path, kinds: list[str]) -> None:
    found: list[dict[str, Any]] = []
    splits = read_splits(key_of(torch.cuda.get_device_name(), torch.cuda.get_device_capability()))
    for kind in kinds or ("nvfp4", "fp8", "bf16"):
        for row in measure(cast(Kind, kind), BATCHES, splits):
            found.append(row)
            results.write_text(json.dumps(found, indent=1))
            print({name: value for name, value in row.items() if name not in ("bytes", "config")}, flush=True)
    if not kinds:
        library = measure_library((8,))
        results.with_name("library.json").write_text(json.dumps(library, indent=1))
        print(library, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

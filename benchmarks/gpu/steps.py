"""The decode step alone, by kind of weights and batch: `python -m benchmarks.gpu.steps RESULTS.json [KIND ...]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

from kernels.benchmarks.decode_step import measure
from kernels.hybrid_step import Kind

BATCHES = (8, 1, 32, 128, 16)


def main(results: Path, kinds: list[str]) -> None:
    found: list[dict[str, Any]] = []
    for kind in kinds or ("nvfp4", "fp8", "bf16"):
        for row in measure(cast(Kind, kind), BATCHES):
            found.append(row)
            results.write_text(json.dumps(found, indent=1))
            print({name: value for name, value in row.items() if name not in ("bytes", "config")}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

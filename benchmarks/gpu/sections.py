"""The ceilings of this GPU, and the tables of single kernels beside them.

python -m benchmarks.gpu.sections RESULTS.json [PART OF A TITLE ...]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from kernels.benchmarks.run import SECTIONS, Ceilings
from kernels.benchmarks.timing import copy_bandwidth, matmul_rate


def main(results: Path, parts: list[str]) -> None:
    ceilings = Ceilings(copy_bandwidth(), matmul_rate())
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "copy": ceilings.copy,
        "matmul": ceilings.matmul,
        "sections": {},
    }
    results.write_text(json.dumps(found, indent=1))
    for title, section in SECTIONS.items():
        if parts and not any(part in title for part in parts):
            continue
        try:
            lines = section(ceilings)
        except Exception as error:  # the others are measured all the same, and the report names this one
            lines = [f"failed: {type(error).__name__}: {error}"]
        found["sections"][title] = lines
        results.write_text(json.dumps(found, indent=1))
        print("\n".join([title, *lines]), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

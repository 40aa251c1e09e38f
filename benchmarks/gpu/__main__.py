"""Everything that is claimed of the GPU, measured on the one of this machine: `make bench-gpu`.

    python -m benchmarks.gpu [--results DIR] [--report docs/benchmarks/engine-h200.md] [--only PART ...] [--render]

Gates first, then the splits, then each part in a process and within a time of its own; what a part found lies in DIR as
JSON the moment it is known. A part that fails is named in the report and in the exit code.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.report import render

PARTS: dict[str, tuple[list[str], int]] = {
    "gates": (["-m", "kernels.gates"], 300),
    "splits": (["-m", "kernels.tuning"], 300),
    "ceilings": (["-m", "benchmarks.gpu.sections", "{}/ceilings.json", "none"], 60),
    "engine-nvfp4": (["-m", "benchmarks.gpu.engine", "nvfp4", "{}/engine-nvfp4.json"], 240),
    "engine-fp8": (["-m", "benchmarks.gpu.engine", "fp8", "{}/engine-fp8.json"], 240),
    "engine-bf16": (["-m", "benchmarks.gpu.engine", "bf16", "{}/engine-bf16.json"], 240),
    "engine-invariant": (
        ["-m", "benchmarks.gpu.engine", "--invariant", "nvfp4", "{}/engine-invariant.json", "same:48", "8:512:128"],
        240,
    ),
    "steps": (["-m", "benchmarks.gpu.steps", "{}/steps.json"], 400),
    "parity": (["-m", "benchmarks.gpu.parity", "{}/parity.json"], 300),
    "peer": (["-m", "benchmarks.gpu.peer", "{}/peer.json"], 120),
    "sections": (["-m", "benchmarks.gpu.sections", "{}/sections.json"], 600),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("var/bench-gpu"))
    parser.add_argument("--report", type=Path, default=Path("docs/benchmarks/engine-h200.md"))
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--render", action="store_true", help="only write the report from results that are there")
    arguments = parser.parse_args()
    failed: list[str] = []
    if not arguments.render:
        import torch

        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
            parser.error("these measurements need an NVIDIA GPU of compute capability 9.0 (H100, H200)")
        arguments.results.mkdir(parents=True, exist_ok=True)
        for name in arguments.only:
            command, seconds = PARTS[name]
            print(f"== {name}", flush=True)
            filled = [part.format(arguments.results) for part in command]
            try:
                code = subprocess.run([sys.executable, *filled], timeout=seconds, check=False).returncode
            except subprocess.TimeoutExpired:
                code = 124
            if code:
                failed.append(f"{name} (exit {code})")
    text = render(arguments.results, failed)
    arguments.report.write_text(text)
    print(text)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

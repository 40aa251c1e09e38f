"""Everything that is claimed of the GPU, measured on the one of this machine: `make bench-gpu`.

    python -m benchmarks.gpu [--results DIR] [--report docs/benchmarks/engine-h200.md] [--only PART ...] [--minutes N]
                             [--render]

Gates first, then the splits, then each part in a process and within a time of its own; what a part found lies in DIR as
JSON the moment it is known, and the report is written anew after each. A part that fails, or for which no time is left,
is named in the report and in the exit code.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

from benchmarks.gpu.report import render
from kernels.gates import default_path

PARTS: dict[str, tuple[list[str], int]] = {
    "native": (["-m", "kernels.native"], 240),
    "gates": (["-m", "kernels.gates"], 240),
    "splits": (["-m", "kernels.tuning"], 120),
    "ceilings": (["-m", "benchmarks.gpu.sections", "{}/ceilings.json", "none"], 60),
    "steps": (["-m", "benchmarks.gpu.steps", "{}/steps.json"], 180),
    "engine-nvfp4": (["-m", "benchmarks.gpu.engine", "nvfp4", "{}/engine-nvfp4.json"], 180),
    "engine-fp8": (
        ["-m", "benchmarks.gpu.engine", "fp8", "{}/engine-fp8.json", "8:512:256", "1:512:1", "1:512:128", "32:512:128"],
        120,
    ),
    "engine-invariant": (
        ["-m", "benchmarks.gpu.engine", "--invariant", "nvfp4", "{}/engine-invariant.json", "same:48", "8:512:128"],
        120,
    ),
    "staged": (["-m", "benchmarks.gpu.staged", "{}/staged.json"], 300),
    "sections": (["-m", "benchmarks.gpu.sections", "{}/sections.json"], 180),
    "parity": (["-m", "benchmarks.gpu.parity", "{}/parity.json"], 120),
    "peer": (["-m", "benchmarks.gpu.peer", "{}/peer.json"], 120),
}
LEAST_SECONDS = 15  # a part that has less is not begun


def write_report(results: Path, report: Path, failed: list[str]) -> None:
    """Of what there is so far. Half a result must not end the run: it is told of, and the last report is not caught."""
    try:
        report.write_text(render(results, failed))
    except Exception:
        traceback.print_exc()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("var/bench-gpu"))
    parser.add_argument("--report", type=Path, default=Path("docs/benchmarks/engine-h200.md"))
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=60.0, help="the time for everything; later parts are left out")
    parser.add_argument("--render", action="store_true", help="only write the report from results that are there")
    arguments = parser.parse_args()
    failed: list[str] = []
    if not arguments.render:
        import torch

        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
            parser.error("these measurements need an NVIDIA GPU of compute capability 9.0 (H100, H200)")
        arguments.results.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + arguments.minutes * 60
        for name in arguments.only:
            command, seconds = PARTS[name]
            began = time.monotonic()
            if end - began < LEAST_SECONDS:
                failed.append(f"{name} (no time left)")
                continue
            print(f"== {name}", flush=True)
            filled = [part.format(arguments.results) for part in command]
            try:
                limit = min(seconds, end - began)
                code = subprocess.run([sys.executable, *filled], timeout=limit, check=False).returncode
            except subprocess.TimeoutExpired:
                code = 124
            print(f"== {name} took {time.monotonic() - began:.0f} s", flush=True)
            if code:
                failed.append(f"{name} (exit {code})")
            for kept in (default_path(), default_path().with_name("splits.json")):
                if kept.exists() and kept.parent.resolve() != arguments.results.resolve():
                    shutil.copy(kept, arguments.results)
            write_report(arguments.results, arguments.report, failed)
    text = render(arguments.results, failed)
    arguments.report.write_text(text)
    print(text)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

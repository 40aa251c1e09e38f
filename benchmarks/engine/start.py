"""How long a model takes to load: the first time, and from the weights that the first time kept, in a new process.

python -m benchmarks.engine.start [--rounds 3] [--model MODEL] [--report docs/benchmarks/engine-start.md]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from inference_grpc.config import EngineConfig
from inference_grpc.model.resolve import EMBEDDED_MODEL

CHILD = "--child"


def load(model: str, packed_dir: str) -> dict[str, float]:
    """Seconds of this process: to import torch, and then to load the model to where it could serve."""
    began = time.perf_counter()
    from inference_grpc.engine.load import load as load_engine

    imported, cpu = time.perf_counter(), time.process_time()
    load_engine(EngineConfig(model=model, packed_dir=packed_dir))
    return {
        "import": imported - began,
        "load": time.perf_counter() - imported,
        "load_cpu": time.process_time() - cpu,
    }


def measure(model: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for start in found:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.engine.start",
                    CHILD,
                    "--model",
                    model,
                    "--packed-dir",
                    folder,
                ]
                found[start].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    return found


def report(found: dict[str, list[dict[str, float]]], model: str) -> str:
    from benchmarks.engine.__main__ import processor  # it imports torch, whose time is measured apart

    lines = [
        "# Starts of the engine on a CPU",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, one",
        f"thread. Model {model}; medians of {len(found['first'])} rounds, each in a new process. Where other work",
        "shares the cores, trust the CPU time: it is what a start takes on a quiet machine.",
        "Made by `python -m benchmarks.engine.start --report docs/benchmarks/engine-start.md`.",
        "",
        "| start | import of torch, s | load, s | load, CPU s |",
        "| --- | --- | --- | --- |",
    ]
    for start, values in found.items():
        middle = {key: median(value[key] for value in values) for key in ("import", "load", "load_cpu")}
        lines.append(f"| {start} | {middle['import']:.1f} | {middle['load']:.2f} | {middle['load_cpu']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.start", description=__doc__)
    parser.add_argument("--model", default=EMBEDDED_MODEL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path, help="write the table to this Markdown file too")
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--packed-dir", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.stdout.write(json.dumps(load(arguments.model, arguments.packed_dir)))
        return
    text = report(measure(arguments.model, arguments.rounds), arguments.model)
    print(text)
    if arguments.report:
        arguments.report.write_text(text)


if __name__ == "__main__":
    main()

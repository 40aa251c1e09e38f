"""Where the time of one decode step goes, launch by launch: `python -m kernels.benchmarks.timeline --kind nvfp4`.

Launches overlap, so a duration holds the wait for the launch before it; what a launch adds to the step is the distance
between its end and the end of the one before. Both are averages over the layers of one replay.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from kernels.benchmarks.decode_step import place
from kernels.benchmarks.random_trunk import random_memory, random_trunk, step_for
from kernels.gates import key_of
from kernels.tuning import read_splits

CONTEXT = 640


def launches(graph: torch.cuda.CUDAGraph) -> list[tuple[str, float, float]]:
    """Name, start and end in microseconds of each launch of one replay, by their ends."""
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    events: list[Any] = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sorted(((e.name, e.time_range.start, e.time_range.end) for e in events), key=lambda row: row[2])


def table(rows: list[tuple[str, float, float]]) -> list[str]:
    """By name and the name before it, since a product of another shape has the same name."""
    added: dict[str, list[float]] = defaultdict(list)
    lasted: dict[str, list[float]] = defaultdict(list)
    before, ended = "", rows[0][1]
    for name, start, end in rows:
        short = name.replace("(anonymous namespace)::", "").split("(")[0].split("<")[0].split("::")[-1].split(" ")[-1]
        key = f"{short} after {before}" if before else short
        added[key].append(end - ended)
        lasted[key].append(end - start)
        before, ended = short, end
    lines = ["| launch | count | lasts us | adds us | of the step us |", "|---|---|---|---|---|"]
    for key in sorted(added, key=lambda key: -sum(added[key])):
        count, total = len(added[key]), sum(added[key])
        lines.append(f"| {key} | {count} | {sum(lasted[key]) / count:.1f} | {total / count:.1f} | {total:.0f} |")
    lines.append(f"\n{len(rows)} launches, {rows[-1][2] - rows[0][1]:.0f} us.")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.benchmarks.timeline", description=__doc__)
    parser.add_argument("--kind", choices=("nvfp4", "fp8", "bf16"), default="nvfp4")
    parser.add_argument("--batches", type=int, nargs="+", default=[8])
    parser.add_argument("--layers", type=int, default=64)
    options = parser.parse_args(arguments)
    trunk, shape = random_trunk(options.kind, layers=options.layers)
    most = max(options.batches)
    memory = random_memory(trunk, shape, slots=most, pages=1 + most * 11)
    measured = read_splits(key_of(torch.cuda.get_device_name(), torch.cuda.get_device_capability()))
    for batch in options.batches:
        step = step_for(trunk, memory, shape, batch=batch, pages=11, measured=measured)
        place(step, CONTEXT)
        lines = table(launches(step.capture()))
        sys.stdout.write("\n".join([f"## {options.kind}, batch {batch}, {options.layers} layers", "", *lines, "", ""]))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

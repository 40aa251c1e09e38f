"""Prefill and decoding of this engine beside its peers, on the same file, in one process, in turn, with one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.engine [--rounds 5] [--report docs/benchmarks/engine-cpu.md]

llama.cpp takes part where `xllamacpp` can be imported; it is no dependency of ours: `pip install --no-deps --target DIR
xllamacpp`, then PYTHONPATH=DIR. Other work on the machine moves wall times; the CPU time of the process, measured
beside them, moves less.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from benchmarks.engine.contestants import Contestant, LlamaCpp, OurEngine, Timing, Transformers
from inference_grpc.model.resolve import EMBEDDED_MODEL, resolve_model


@dataclass(frozen=True, slots=True)
class Task:
    """`at_once` prompts; what is counted is the tokens of the prompts, or those that follow the first one of each."""

    name: str
    at_once: int
    prompt_tokens: int
    tokens: int

    @property
    def is_prefill(self) -> bool:
        return self.tokens == 1

    @property
    def counted(self) -> int:
        return self.at_once * (self.prompt_tokens if self.is_prefill else self.tokens - 1)


TASKS = (
    Task("prefill", at_once=1, prompt_tokens=512, tokens=1),
    Task("decode, 1 at once", at_once=1, prompt_tokens=64, tokens=65),
    Task("decode, 8 at once", at_once=8, prompt_tokens=64, tokens=65),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds for each counted token."""

    wall_ms: float
    cpu_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="an embedded model or the path of a GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--report", type=Path, help="write the table to this Markdown file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    _, path = resolve_model(arguments.model)
    contestants: list[Contestant] = [OurEngine(arguments.model), Transformers(path)]
    if importlib.util.find_spec("xllamacpp") is not None:
        contestants.append(LlamaCpp(path, max(task.at_once for task in TASKS)))
    costs = measure(contestants, arguments.rounds)
    for contestant in contestants:
        contestant.close()
    text = report(contestants, costs, arguments)
    print(text)
    if arguments.report:
        arguments.report.write_text(text)


def measure(contestants: list[Contestant], rounds: int) -> dict[tuple[str, str], list[Cost]]:
    chance = random.Random(1)

    def prompts(task: Task) -> list[list[int]]:
        """New ones each time: none is found in a prefix cache."""
        return [[chance.randrange(1000, 40_000) for _ in range(task.prompt_tokens)] for _ in range(task.at_once)]

    costs: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for contestant in contestants:
        contestant.run([[5, 6, 7]], 2)
    for _ in range(rounds):
        for task in TASKS:
            for contestant in contestants:
                whole = contestant.run(prompts(task), task.tokens)
                # Decoding is what a longer answer costs beyond a prompt and its first token.
                start = Timing(0.0, 0.0) if task.is_prefill else contestant.run(prompts(task), 1)
                cost = Cost(
                    (whole.wall_s - start.wall_s) / task.counted * 1000,
                    (whole.cpu_s - start.cpu_s) / task.counted * 1000,
                )
                costs[task.name, contestant.name].append(cost)
    return costs


def report(
    contestants: list[Contestant], costs: dict[tuple[str, str], list[Cost]], arguments: argparse.Namespace
) -> str:
    prefill, decode = TASKS[0], TASKS[-1]
    lines = [
        "# The engine on a CPU, beside its peers",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, one "
        f"thread, Python {platform.python_version()}, torch {torch.__version__}.",
        f"Model {arguments.model}, the same file for all. Medians of {arguments.rounds} rounds in which they "
        "took turns.",
        "",
        f"- Prefill: a prompt of {prefill.prompt_tokens} random tokens and the first token after it.",
        f"- Decode: {decode.tokens - 1} more tokens after {decode.prompt_tokens} of a prompt, greedily; the prompt"
        " is measured apart and taken off.",
        "- CPU: of the whole process. Where other work shares the cores, trust this column.",
        "- Ratios are this engine against the peer: above 1, this engine is faster or cheaper.",
        "- Made by `OMP_NUM_THREADS=1 python -m benchmarks.engine --report docs/benchmarks/engine-cpu.md`.",
        "",
        "| task | engine | precision | tokens/s | ratio | CPU ms/token | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        ours = middle(costs[task.name, contestants[0].name])
        for contestant in contestants:
            cost = middle(costs[task.name, contestant.name])
            lines.append(
                f"| {task.name} | {contestant.name} | {contestant.precision} | {1000 / cost.wall_ms:.1f} | "
                f"{cost.wall_ms / ours.wall_ms:.2f} | {cost.cpu_ms:.2f} | {cost.cpu_ms / ours.cpu_ms:.2f} |"
            )
    return "\n".join(lines) + "\n"


def middle(costs: list[Cost]) -> Cost:
    return Cost(median(cost.wall_ms for cost in costs), median(cost.cpu_ms for cost in costs))


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "an unknown processor"


if __name__ == "__main__":
    main()

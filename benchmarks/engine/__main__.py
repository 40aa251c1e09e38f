"""Tokens per second and time to the first token of this engine beside its peers, in one process, in turn.

    OMP_NUM_THREADS=1 python -m benchmarks.engine [--rounds 3] [--report docs/benchmarks/engine-cpu.md]

llama.cpp takes part where `xllamacpp` is installed. Other work on the machine moves wall times; the CPU time of the
process, measured beside them, moves less.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import random
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from benchmarks.engine.contestants import Contestant, LlamaCpp, OurEngine, Timing, Transformers
from inference_grpc.model.resolve import EMBEDDED_MODEL, resolve_model

CONCURRENCIES = (1, 8)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="an embedded model or the path of a GGUF file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="generated for each prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the table to this Markdown file too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    _, path = resolve_model(arguments.model)
    contestants: list[Contestant] = [OurEngine(arguments.model), Transformers(path)]
    if importlib.util.find_spec("xllamacpp") is not None:
        contestants.append(LlamaCpp(path, max(CONCURRENCIES)))
    timings = measure(contestants, arguments)
    for contestant in contestants:
        contestant.close()
    text = report(contestants, timings, arguments)
    print(text)
    if arguments.report:
        arguments.report.write_text(text)


def measure(contestants: list[Contestant], arguments: argparse.Namespace) -> dict[tuple[str, int], list[Timing]]:
    chance = random.Random(1)
    timings: dict[tuple[str, int], list[Timing]] = {}
    for contestant in contestants:
        contestant.run([[5, 6, 7]], 2)
    for _ in range(arguments.rounds):
        for concurrency in CONCURRENCIES:
            # New prompts each time: none is found in a prefix cache.
            prompts = [
                [chance.randrange(1000, 40_000) for _ in range(arguments.prompt_tokens)] for _ in range(concurrency)
            ]
            for contestant in contestants:
                timing = contestant.run(prompts, arguments.tokens)
                timings.setdefault((contestant.name, concurrency), []).append(timing)
    return timings


def report(
    contestants: list[Contestant], timings: dict[tuple[str, int], list[Timing]], arguments: argparse.Namespace
) -> str:
    lines = [
        "# The engine on a CPU, beside its peers",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{arguments.threads} thread(s), Python {platform.python_version()}, torch {torch.__version__}.",
        f"Model {arguments.model}; prompts of {arguments.prompt_tokens} random tokens, {arguments.tokens} generated "
        f"greedily for each. Medians of {arguments.rounds} rounds in which the contestants took turns.",
        "",
        "- Tokens per second: all generated tokens by the time from first submission to last token, prefill included.",
        "- CPU per token: of the whole process. Where other work shares the cores, trust this column.",
        "- Ratios are this engine against the peer: above 1, this engine is faster or cheaper.",
        "- Made by `OMP_NUM_THREADS=1 python -m benchmarks.engine --report docs/benchmarks/engine-cpu.md`.",
        "",
        "| engine | precision | at once | tokens/s | ratio | CPU ms/token | ratio | TTFT ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for concurrency in CONCURRENCIES:
        ours_rate, ours_cpu, _ = summary(timings[contestants[0].name, concurrency], concurrency * arguments.tokens)
        for contestant in contestants:
            rate, cpu_ms, ttft_ms = summary(timings[contestant.name, concurrency], concurrency * arguments.tokens)
            lines.append(
                f"| {contestant.name} | {contestant.precision} | {concurrency} | {rate:.1f} | {ours_rate / rate:.2f} | "
                f"{cpu_ms:.1f} | {cpu_ms / ours_cpu:.2f} | {ttft_ms:.0f} |"
            )
    return "\n".join(lines) + "\n"


def summary(timings: list[Timing], tokens: int) -> tuple[float, float, float]:
    """Tokens per second, CPU milliseconds per token, milliseconds to the first token: medians."""
    return (
        tokens / median(timing.wall_s for timing in timings),
        median(timing.cpu_s for timing in timings) / tokens * 1000,
        median(timing.ttft_s for timing in timings) * 1000,
    )


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "an unknown processor"


if __name__ == "__main__":
    main()

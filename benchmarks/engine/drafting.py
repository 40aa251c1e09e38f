"""What drafting gives and takes: tokens a step and CPU milliseconds a token, with and without, as drafts get worse.

    python -m benchmarks.engine.drafting [--tokens 32] [--at-once 1 4] [--report docs/benchmarks/drafting.md]

A hybrid of random weights, wide enough that reading them is most of a step at batch 1, whose draft layer agrees with it
more or less (`model/tiny.py`, `let_drafts_agree`); a trained model's acceptance lies somewhere between the rows. Each
text is compared with that of plain decoding.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.__main__ import processor
from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import StepRows
from inference_grpc.core.request import Request, SamplingParams
from inference_grpc.engine import load_backend
from inference_grpc.events import Failed, Finished, TextDelta
from inference_grpc.model.tiny import write_tiny

WIDE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
DEPTHS = (0.0, 0.06, 0.15)
DRAFT_TOKENS = (0, 1, 2, 3)
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    tokens_per_step: float  # of one sequence
    cpu_ms: float  # of the whole process, a token
    wall_ms: float
    acceptance: float | None
    by_position: tuple[float, ...]
    texts: dict[int, str]


class Trial:
    """One engine, kept for all rounds."""

    def __init__(self, model: Path, draft_tokens: int) -> None:
        self._backend = load_backend(
            EngineConfig(
                model=str(model), draft_tokens=draft_tokens, checkpoint_mib=0, packed_mib=0, pages=64, max_sequences=8
            )
        )
        if (self._backend.info().draft_head == "none") != (draft_tokens == 0):
            raise SystemExit("drafting is off on this machine; its log says why")
        self._changed = threading.Condition()
        self._texts: dict[int, str] = {}
        self._left: set[int] = set()
        self._backend.start(self._on_step)

    def run(self, at_once: int, tokens: int) -> Measured:
        before = self._backend.info()
        self._texts, self._left = dict.fromkeys(range(at_once), ""), set(range(at_once))
        prompts = [[7 + (31 * key + 5 * place) % 200 for place in range(16)] for key in range(at_once)]
        prepared = [
            self._backend.prepare(
                Request(str(key), prompt, SamplingParams(temperature=0.0), max_tokens=tokens, ignore_eos=True)
            )
            for key, prompt in enumerate(prompts)
        ]
        began, cpu = time.perf_counter(), time.process_time()
        for key, request in enumerate(prepared):
            self._backend.submit(key, request)
        with self._changed:
            self._changed.wait_for(lambda: not self._left)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
        after = self._backend.info()

        def grown(now: list[int], then: list[int]) -> list[int]:
            return [count - (then[n] if n < len(then) else 0) for n, count in enumerate(now)]

        drafted = grown(after.drafted_per_position, before.drafted_per_position)
        accepted = grown(after.accepted_per_position, before.accepted_per_position)
        return Measured(
            tokens_per_step=tokens / (after.steps - before.steps),
            cpu_ms=cpu / (at_once * tokens) * 1000,
            wall_ms=wall / (at_once * tokens) * 1000,
            acceptance=sum(accepted) / sum(drafted) if sum(drafted) else None,
            by_position=tuple(a / d for a, d in zip(accepted, drafted, strict=False) if d),
            texts=self._texts,
        )

    def close(self) -> None:
        self._backend.close()

    def _on_step(self, rows: StepRows) -> None:
        with self._changed:
            for key, event in rows:
                if isinstance(event, TextDelta):
                    self._texts[key] += event.text
                elif isinstance(event, Failed):
                    raise SystemExit(f"a request failed: {event.message}")
                elif isinstance(event, Finished):
                    self._left.discard(key)
            self._changed.notify_all()


def measure(model: Path, at_once: int, tokens: int) -> list[Measured]:
    """By DRAFT_TOKENS; of ROUNDS in which they took turns, the one of median CPU time."""
    trials = [Trial(model, draft_tokens) for draft_tokens in DRAFT_TOKENS]
    for trial in trials:
        trial.run(at_once, 8)
    rounds = [[trial.run(at_once, tokens) for trial in trials] for _ in range(ROUNDS)]
    for trial in trials:
        trial.close()
    found = [sorted(column, key=lambda each: each.cpu_ms)[ROUNDS // 2] for column in zip(*rounds, strict=True)]
    if any(each.texts != found[0].texts for each in found):
        raise SystemExit("a text differs from that of plain decoding")
    return found


def table(at_once: int, tokens: int, scratch: Path) -> list[str]:
    lines = [
        f"## {at_once} at once",
        "",
        "| draft tokens | accepted | by position | tokens a step | CPU ms/token | of plain | wall ms/token |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for depth in DEPTHS:
        model = write_tiny(scratch / f"depth-{depth}", depth=depth, **WIDE)
        found = measure(model, at_once, tokens)
        for draft_tokens, each in zip(DRAFT_TOKENS, found, strict=True):
            share = "-" if each.acceptance is None else f"{each.acceptance:.0%}"
            positions = " ".join(f"{value:.0%}" for value in each.by_position) or "-"
            lines.append(
                f"| {draft_tokens or 'none'} | {share} | {positions} | {each.tokens_per_step:.2f} | {each.cpu_ms:.2f} "
                f"| {each.cpu_ms / found[0].cpu_ms:.2f} | {each.wall_ms:.2f} |"
            )
        lines.append("| | | | | | | |")
    return [*lines[:-1], ""]


def report(tables: list[str], tokens: int, at_once: list[int]) -> str:
    return "\n".join(
        [
            "# Drafting on a CPU",
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, one thread, Python {platform.python_version()}, torch "
            f"{torch.__version__}. Made by `OMP_NUM_THREADS=1 python -m benchmarks.engine.drafting "
            f"--at-once {' '.join(map(str, at_once))} --report docs/benchmarks/drafting.md`, on a machine with load "
            f"{os.getloadavg()[0]:.0f}.",
            "",
            f"A hybrid of {WIDE['num_hidden_layers']} layers and hidden size {WIDE['hidden_size']} with random "
            "weights; its draft layer agrees with it by construction, less from block to block of a table. "
            f"{tokens} tokens greedily after a prompt of 16, whose cost is in, medians of {ROUNDS} rounds in which the "
            "settings took turns. CPU time is of the whole process; where other work shares the cores, trust that "
            "column. All texts equal plain decoding's.",
            "",
            "The number of drafts of a step is at most the setting and adapts: one more after a step in which all were "
            "right, one less after one in which none was.",
            "",
            *tables,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.drafting", description=__doc__)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--report", type=Path, help="write the tables to this Markdown file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for at_once in arguments.at_once:
            tables += table(at_once, arguments.tokens, Path(scratch) / str(at_once))
    text = report(tables, arguments.tokens, arguments.at_once)
    print(text)
    if arguments.report:
        arguments.report.write_text(text)


if __name__ == "__main__":
    main()

"""The engine end to end on the GPU: scheduler, step, sampling, detokenizing, gRPC out to a client in its own process.

python -m benchmarks.gpu.engine nvfp4 RESULTS.json [CASE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.random_model import full_tokenizer, random_model
from inference_grpc.config import EngineConfig
from inference_grpc.engine.load import assemble
from inference_grpc.server.process import EngineServer
from kernels.benchmarks.decode_step import bytes_read, place
from kernels.benchmarks.timing import median_graph_us
from kernels.hybrid_step import MOST_ROWS

CASES = ["8:512:256", "1:512:1", "1:32768:1", "8:512:256", "1:512:128", "32:512:128", "128:512:64"]
PAGE = 64


@torch.inference_mode()
def bare_step_us(model: Any, batch: int, context: int) -> float:
    """The very step that the engine replays, without the engine."""
    steps = model._steps
    built = steps._step_for(batch, steps._pages(context))
    place(built.step, context)
    if batch * built.step.pages > model._memory.padding_page:  # pages of their own would not suffice
        built.step.table.fill_(1)
    return median_graph_us(built.graph, repeats=15)


def answers(results: Path) -> Any:
    path = Path(f"{results}.client")
    return json.loads(path.read_text()) if path.exists() else {}


async def serve(kind: Any, results: Path, cases: list[str], invariant: bool) -> None:
    found: dict[str, Any] = {"kind": kind, "invariant": invariant}

    def keep() -> None:
        results.write_text(json.dumps(found, indent=1))

    began = time.monotonic()
    before = torch.cuda.memory_allocated()
    model = random_model(kind, invariant=invariant)
    found["weights_allocated"] = torch.cuda.memory_allocated() - before
    found["ways"] = list(model.ways.lines)
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            device="cuda",
            listen="127.0.0.1:0",
            journal_dir=Path(folder),
            max_sequences=128,
            page_tokens=PAGE,
            pages=3200,
            prefill_tokens=8192,
            checkpoint_mib=4096,
        )
        slots = config.max_sequences + config.checkpoint_mib * 2**20 // model.state_bytes
        model.allocate(pages=config.pages, page_tokens=PAGE, state_slots=slots)
        # Here and not at the first request: the steps of the sizes that are measured.
        wanted = sorted({min(int(case.split(":")[0]), MOST_ROWS) for case in cases if case[0].isdigit()})
        model.prepare_steps(wanted, 1024)
        found["started_s"] = time.monotonic() - began
        found["bare_us"] = {str(batch): bare_step_us(model, batch, 640) for batch in wanted}
        found["bytes"] = {str(batch): sum(bytes_read(kind, batch, 640).values()) for batch in wanted}
        found["allocated"] = torch.cuda.memory_allocated()
        keep()
        print(found["started_s"], found["bare_us"], flush=True)
        tokenizer = full_tokenizer()
        backend = assemble(config, model, tokenizer, None, state_slots=slots)
        async with EngineServer(config, load=lambda _: backend) as server:
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.gpu.client", server.address, f"{results}.client", *cases
            )
            code = await client.wait()
            backend.engine.check_integrity()
        found |= {"client": answers(results), "client_exit": code}
        found["peak"] = torch.cuda.max_memory_allocated()
        keep()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.engine", description=__doc__)
    parser.add_argument("kind", choices=["nvfp4", "fp8", "bf16"])
    parser.add_argument("results", type=Path)
    parser.add_argument("cases", nargs="*", default=CASES, help="concurrency:prompt:tokens, or same:tokens")
    parser.add_argument("--invariant", action="store_true", help="rows with one order of sums in any batch")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.kind, arguments.results, arguments.cases, arguments.invariant))


if __name__ == "__main__":
    main()

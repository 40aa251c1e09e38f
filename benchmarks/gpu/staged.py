"""A staged cache filled on the GPU: contexts until one more is not admitted, by the engine's own scheduler and model.

python -m benchmarks.gpu.staged RESULTS.json [--tokens 32768] [--envelope-gib 86.4]

As many contexts as `python -m inference_grpc.tools capacity` says are held at once, then all of them decode a few
tokens together; what is allocated is read from torch's allocator. The first few are prefilled by the model. To prefill
them all would take the better part of an hour: of the others every page is taken, demoted and held, with random numbers
in it. Weights and tokens are random.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.random_model import random_model
from inference_grpc.config import EngineConfig
from inference_grpc.core.batch import Batch
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine.pools import pools_of
from inference_grpc.tools.capacity import PAGE_TOKENS, costs_of, fill, holders
from kernels.paged_attention.cache import PagePools
from kernels.paged_attention.stage import Staging

DECODED = 16
PREFILL_TOKENS = 2048
PREFILLED = 2


@torch.inference_mode()
def measure(tokens: int, envelope: int) -> dict[str, Any]:
    rule = Staging()
    before = torch.cuda.memory_allocated()
    model = random_model("nvfp4", staging=rule)
    weights = torch.cuda.memory_allocated() - before
    promised = fill(costs_of("staged", rule), tokens=tokens, memory=envelope - weights)
    baseline = fill(costs_of("fp8", None), tokens=tokens, memory=envelope - weights)
    contexts = promised.contexts
    config = EngineConfig(
        device="cuda",
        max_sequences=contexts,
        page_tokens=PAGE_TOKENS,
        pages=contexts * -(-tokens // PAGE_TOKENS),
        prefill_tokens=PREFILL_TOKENS,
        kv_cache="staged",
    )
    pools = pools_of(config, model)
    model.allocate(pages=pools.pages, page_tokens=PAGE_TOKENS, state_slots=contexts + 1, staged=pools.staged)
    allocated = torch.cuda.memory_allocated()
    assert model._memory is not None
    for layer in model._memory.layers:
        if isinstance(layer, PagePools):
            for pool in (layer.keys, layer.values):
                pool.view(torch.uint8).random_(0, 64)
    cache, scheduler = holders(pools, contexts, model.block_tokens, PREFILL_TOKENS)
    for number in range(contexts + 1):
        ids = [(number * 7919 + 31 * place) % model.vocabulary for place in range(tokens - DECODED)]
        scheduler.add(
            Sequence(
                key=number,
                choice=0,
                prompt_ids=ids,
                sampling=SamplingParams(),
                seed=0,
                max_tokens=DECODED,
                arrival=number,
            )
        )
    began, step_s = time.monotonic(), []
    known: dict[int, int] = {}  # the first token of each text, which waits until all are prefilled
    while len(known) < contexts:
        batch = scheduler.schedule()
        computed = Batch([chunk for chunk in batch.chunks if chunk.sequence.key < PREFILLED], batch.moves)
        logits = model.forward(computed)
        scheduler.commit(batch)
        known |= {end.sequence.key: 1 for end in batch.ends}
        known |= {end.sequence.key: int(logits[end.row].argmax()) for end in computed.ends}
    prefill_s = time.monotonic() - began
    held = {"fp8_pages": cache.pool.held, "three_bit_pages": cache.stale.pool.held}
    running = list(scheduler.running)
    for sequence in running:
        sequence.append(known[sequence.key])
    for _ in range(DECODED - 1):
        torch.cuda.synchronize()
        began = time.monotonic()
        batch = scheduler.schedule()
        logits = model.forward(batch)
        scheduler.commit(batch)
        drawn = logits.argmax(-1).tolist()
        step_s.append(time.monotonic() - began)
        if not bool(torch.isfinite(logits).all()):
            raise AssertionError("logits are not finite")
        for end in batch.ends:
            end.sequence.append(drawn[end.row])
    cache.check_integrity(scheduler.sequences())
    if len(running) != contexts or scheduler.waiting != 1 or scheduler.preemptions:
        raise AssertionError(f"{len(running)} contexts of {contexts} run, {scheduler.preemptions} were preempted")
    return {
        "tokens": tokens,
        "envelope": envelope,
        "contexts": contexts,
        "fp8_cache_contexts": baseline.contexts,
        "promised": asdict(promised),
        "weights": weights,
        "allocated": allocated,
        "fits_envelope": allocated - before <= envelope,
        "peak": torch.cuda.max_memory_allocated(),
        "held": held,
        "prefill_s": prefill_s,
        "step_ms": sorted(step_s)[len(step_s) // 2] * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.staged", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--envelope-gib", type=float, default=86.4)
    options = parser.parse_args()
    found = measure(options.tokens, int(options.envelope_gib * 2**30))
    options.results.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

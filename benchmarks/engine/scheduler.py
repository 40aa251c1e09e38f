"""What scheduling costs: CPU milliseconds of one step's bookkeeping, without a model.

    python -m benchmarks.engine.scheduler [--sequences 256] [--steps 400]

Every step takes a token of each sequence; finished ones are replaced, so admission, search of prefixes and release are
in it.
Said apart for a model with and without recurrent state.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median, quantiles

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine.scheduler import Scheduler


def measure(sequences: int, steps: int, *, has_state: bool) -> list[float]:
    """Milliseconds of each step."""
    chance = random.Random(1)
    block = 64 if has_state else 1
    cache = CacheCoordinator(
        pages=sequences * 80, page_tokens=16, state_slots=2 * sequences if has_state else 0, block_tokens=block
    )
    scheduler = Scheduler(cache, max_sequences=sequences, prefill_tokens=2048, block_tokens=block)
    beginning = [chance.randrange(50_000) for _ in range(256)]
    arrivals = 0

    def add() -> None:
        nonlocal arrivals
        prompt = beginning[: chance.randrange(256)] + [
            chance.randrange(50_000) for _ in range(chance.randrange(1, 512))
        ]
        scheduler.add(
            Sequence(
                key=arrivals,
                choice=0,
                prompt_ids=prompt,
                sampling=SamplingParams(),
                seed=0,
                max_tokens=chance.randrange(50, 400),
                tenant=f"tenant-{arrivals % 20}",
                arrival=arrivals,
            )
        )
        arrivals += 1

    for _ in range(sequences + 32):
        add()
    costs = []
    while len(costs) < steps:
        began = time.process_time()
        batch = scheduler.schedule()
        sampling = batch.sampling
        scheduler.commit(batch)
        for sequence in sampling:
            sequence.append(7)
            if sequence.generated >= sequence.max_tokens:
                scheduler.remove(sequence)
                add()
        # The start, when nothing decodes yet, is not what is asked for.
        if len(scheduler.running) == sequences and len(sampling) > sequences * 0.8:
            costs.append((time.process_time() - began) * 1000)
    cache.check_integrity(scheduler.sequences())
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.scheduler", description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    for has_state in (False, True):
        costs = measure(arguments.sequences, arguments.steps, has_state=has_state)
        kind = "with recurrent state" if has_state else "attention only"
        worst = quantiles(costs, n=100)[98]
        print(f"{arguments.sequences} sequences, {kind}: median {median(costs):.2f} ms, 99th percentile {worst:.2f} ms")


if __name__ == "__main__":
    main()

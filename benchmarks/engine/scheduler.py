"""What scheduling costs: CPU milliseconds of one step's bookkeeping, without a model.

    python -m benchmarks.engine.scheduler [--sequences 256] [--steps 400]

Every step takes a token of each sequence; finished ones are replaced, so admission, search of prefixes and release are
in it.
Said apart for a model with and without recurrent state, and with drafts, of which most are right.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median, quantiles

from inference_grpc.cache.coordinator import CacheCoordinator
from inference_grpc.core.batch import End
from inference_grpc.core.request import SamplingParams
from inference_grpc.core.sequence import Sequence
from inference_grpc.engine.scheduler import Scheduler

RIGHT = 0.8  # of the drafts


def measure(sequences: int, steps: int, *, has_state: bool, draft_tokens: int = 0) -> list[float]:
    """Milliseconds of each step."""
    chance = random.Random(1)
    block = 64 if has_state else 1
    cache = CacheCoordinator(
        pages=sequences * 80,
        page_tokens=16,
        state_slots=(2 + draft_tokens) * sequences if has_state else 0,
        block_tokens=block,
        draft_tokens=draft_tokens,
    )
    scheduler = Scheduler(
        cache,
        max_sequences=sequences,
        prefill_tokens=2048 + sequences * draft_tokens,
        block_tokens=block,
        draft_tokens=draft_tokens,
    )
    beginning = [chance.randrange(50_000) for _ in range(256)]
    prompts: list[list[int]] = []  # made beside what is measured
    arrivals = 0

    def make_prompts(count: int) -> None:
        while len(prompts) < count:
            own = [chance.randrange(50_000) for _ in range(chance.randrange(1, 512))]
            prompts.append(beginning[: chance.randrange(256)] + own)

    def add() -> None:
        nonlocal arrivals
        scheduler.add(
            Sequence(
                key=arrivals,
                choice=0,
                prompt_ids=prompts.pop(),
                sampling=SamplingParams(),
                seed=0,
                max_tokens=chance.randrange(50, 400),
                tenant=f"tenant-{arrivals % 20}",
                arrival=arrivals,
            )
        )
        arrivals += 1

    def drafts(count: int) -> tuple[int, ...]:
        return tuple(7 if chance.random() < RIGHT else 8 for _ in range(count))

    def take(end: End) -> End | None:
        sequence, following = end.sequence, end.after(7)
        sequence.append(7)
        if end.accepted and following is None:
            scheduler.accept(end)
        if sequence.generated >= sequence.max_tokens:
            scheduler.remove(sequence)
            add()
        return following

    make_prompts(sequences + 32)
    for _ in range(sequences + 32):
        add()
    costs = []
    while len(costs) < steps:
        make_prompts(sequences)
        began = time.process_time()
        batch = scheduler.schedule()
        drafting = time.process_time()
        for chunk in batch.chunks:
            chunk.drafts = drafts(chunk.room)
        drafted = time.process_time()
        ends = batch.ends
        sampling = len(ends)
        scheduler.commit(batch)
        while ends:
            ends = [following for end in ends if (following := take(end)) is not None]
        # The start, when nothing decodes yet, is not what is asked for.
        if len(scheduler.running) == sequences and sampling > sequences * 0.8:
            costs.append((time.process_time() - began - (drafted - drafting)) * 1000)
    cache.check_integrity(scheduler.sequences())
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.scheduler", description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    kinds = (
        ("attention only", False, 0),
        ("with recurrent state", True, 0),
        ("with recurrent state and up to 3 drafts", True, 3),
    )
    for kind, has_state, draft_tokens in kinds:
        costs = measure(arguments.sequences, arguments.steps, has_state=has_state, draft_tokens=draft_tokens)
        worst = quantiles(costs, n=100)[98]
        print(f"{arguments.sequences} sequences, {kind}: median {median(costs):.2f} ms, 99th percentile {worst:.2f} ms")


if __name__ == "__main__":
    main()

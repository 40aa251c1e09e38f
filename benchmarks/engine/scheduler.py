"""What scheduling costs: CPU milliseconds of one step's bookkeeping, without a model.

    python -m benchmarks.engine.scheduler [--sequences 256] [--steps 400]

Counted are the calls of the scheduler and, through it, of the cache and the batch: scheduling, what the step ends with,
following the drafts that proved right, committing, and for sequences that end release, admission of the next and search
of prefixes. What the drafter, the sampler and the reader of tokens do, here drawing and appending, is not.
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

    def make_sequence() -> Sequence:
        nonlocal arrivals
        arrivals += 1
        return Sequence(
            key=arrivals,
            choice=0,
            prompt_ids=prompts.pop(),
            sampling=SamplingParams(),
            seed=0,
            max_tokens=chance.randrange(50, 400),
            tenant=f"tenant-{arrivals % 20}",
            arrival=arrivals,
        )

    def drafts(count: int) -> tuple[int, ...]:
        return tuple(7 if chance.random() < RIGHT else 8 for _ in range(count))

    def take(ends: list[End]) -> float:
        """The tokens of a step that has run; returns the seconds that count."""
        counted = 0.0
        over: list[Sequence] = []
        while ends:
            began = time.process_time()
            followed = [end.after(7) for end in ends]
            counted += time.process_time() - began
            for end in ends:
                end.sequence.append(7)
            began = time.process_time()
            for end, following in zip(ends, followed, strict=True):
                if end.accepted and following is None:
                    scheduler.accept(end)
            counted += time.process_time() - began
            over += [end.sequence for end in ends if end.sequence.generated >= end.sequence.max_tokens]
            ends = [end for end in followed if end is not None]
        newcomers = [make_sequence() for _ in over]
        began = time.process_time()
        for sequence, newcomer in zip(over, newcomers, strict=True):
            scheduler.remove(sequence)
            scheduler.add(newcomer)
        return counted + time.process_time() - began

    make_prompts(sequences + 32)
    for _ in range(sequences + 32):
        scheduler.add(make_sequence())
    costs: list[float] = []
    while len(costs) < steps:
        make_prompts(sequences)
        began = time.process_time()
        batch = scheduler.schedule()
        scheduled = time.process_time() - began
        is_full = len(scheduler.running) == sequences
        for chunk in batch.chunks:
            chunk.drafts = drafts(chunk.room)
        began = time.process_time()
        ends = batch.ends
        scheduler.commit(batch)
        committed = time.process_time() - began
        taken = take(ends)
        # The start, when nothing decodes yet, is not what is asked for.
        if is_full and len(ends) > sequences * 0.8:
            costs.append((scheduled + committed + taken) * 1000)
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

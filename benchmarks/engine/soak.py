"""Many random requests through the whole engine on a tiny hybrid: every one ends, and no page or slot is lost.

    python -m benchmarks.engine.soak [--requests 10000] [--longest 4000] [--seed 1] [--draft-tokens 3] [--model PATH]
                                     [--kv-cache staged] [--report FILE.md]

Lengths, shared beginnings, number of choices, stop strings, seeds, priorities, tenants, deadlines and cancels are drawn
at random. Memory is small, so sequences are preempted and states evicted all the time. Some requests are repeated, and
their texts at temperature 0 must be equal. All pages and slots are counted every hundred steps and at the end.

Over a staged cache all but the first page and the last four of a text is in three bits. In plain form that is slow, so
take fewer requests and shorter ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import StepRows
from inference_grpc.core.request import Request, SamplingParams
from inference_grpc.engine import load_backend
from inference_grpc.events import Failed, Finished, TextDelta
from inference_grpc.model.tiny import write_tiny

AT_ONCE = 24
MAX_SEQUENCES = 16
PAGE_TOKENS = 16
# Of a staged cache.
ANCHORS, RECENT = 1, 4
STEPS_BETWEEN_COUNTS = 100
# One layer of each kind and narrow heads: what is tried is bookkeeping, so steps should be short.
NARROW: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# Of its layers: about half of the drafts of its draft layer are right then.
DEPTH = 0.1


@dataclass
class Outcome:
    finished: int = 0
    cancelled: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    cached_tokens: int = 0
    compared: int = 0
    differing: int = 0
    preemptions: int = 0
    swaps: int = 0  # of these, to host memory
    drafted: int = 0
    accepted: int = 0
    most_three_bit: int = 0  # pages of them that sequences held at a time
    steps: int = 0
    counts: int = 0  # how often all pages and slots were counted
    seconds: float = 0.0


class Soak:
    def __init__(self, model: str, longest: int, seed: int, *, draft_tokens: int = 0, kv_cache: str = "auto") -> None:
        self._chance = random.Random(seed)
        self._longest = longest
        # Room for one of the longest and a little, so that sequences push one another out.
        pages = (longest + 200) // PAGE_TOKENS + 4
        if kv_cache == "staged":  # whose pages in FP8 are for all that run at once
            pages += (MAX_SEQUENCES - 1) * (ANCHORS + RECENT)
        config = EngineConfig(
            model=model,
            pages=pages,
            page_tokens=PAGE_TOKENS,
            max_sequences=MAX_SEQUENCES,
            kv_cache=kv_cache,
            kv_anchor_pages=ANCHORS,
            kv_recent_pages=RECENT,
            prefill_tokens=1024,
            queue_limit=10_000,
            checkpoint_mib=0,
            swap_mib=1,
            draft_tokens=draft_tokens,
        )
        self._backend = load_backend(config)
        self._vocabulary = 200
        self._beginnings = [self._random_tokens(n) for n in (40, 200, 700)]
        self._changed = threading.Condition()
        self._open: dict[int, list[str]] = {}
        self._cancel_after: dict[int, int] = {}
        self._texts: dict[tuple[object, ...], str] = {}
        self._kinds: dict[int, tuple[object, ...]] = {}
        self._miscounts: list[AssertionError] = []
        self._outcome = Outcome()

    def run(self, requests: int) -> Outcome:
        began = time.monotonic()
        self._backend.start(self._on_step)
        for key in range(requests):
            if key and key % 500 == 0:
                print(f"{key} of {requests} submitted, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            with self._changed:
                self._changed.wait_for(lambda: len(self._open) < AT_ONCE)
            request = self._request(key)
            with self._changed:
                self._open[key] = []
                if self._chance.random() < 0.15:
                    self._cancel_after[key] = self._chance.randrange(12)
                elif request.sampling.temperature == 0 and not request.deadline_unix_ms:
                    self._kinds[key] = (tuple(request.prompt), request.max_tokens, tuple(request.stop))
            self._backend.submit(key, self._backend.prepare(request))
            if self._cancel_after.get(key) == 0:
                self._backend.cancel(key)
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
        self._backend.close()
        engine = self._backend.engine
        engine.check_integrity()
        self._outcome.counts += 1
        if self._miscounts:
            raise self._miscounts[0]
        cache = engine.cache
        held = cache.pool.held, cache.stale.pool.held, cache.slots.held, cache.host.held
        if any(held):
            raise AssertionError(f"still held: pages, three-bit pages, slots, host pages {held}")
        self._outcome.steps = engine.counters.steps
        self._outcome.drafted, self._outcome.accepted = sum(engine.counters.drafted), sum(engine.counters.accepted)
        self._outcome.preemptions = engine.scheduler.preemptions
        self._outcome.swaps = engine.scheduler.swaps
        self._outcome.cached_tokens = engine.counters.prefix_hit_tokens
        self._outcome.tokens = engine.counters.prompt_tokens + engine.counters.completion_tokens
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    def _request(self, key: int) -> Request:
        chance = self._chance
        if self._texts and chance.random() < 0.1:
            prompt, max_tokens, stop = chance.choice(list(self._texts))
            return Request(
                str(key),
                list(prompt),
                SamplingParams(temperature=0.0),
                max_tokens=max_tokens,
                stop=list(stop),
                ignore_eos=True,
            )
        beginning = chance.choice(self._beginnings) if chance.random() < 0.5 else []
        # Most are short, some are as long as allowed.
        length = max(int(self._longest ** chance.random()), 1)
        prompt = (beginning + self._random_tokens(length))[: self._longest]
        return Request(
            str(key),
            prompt,
            SamplingParams(temperature=chance.choice([0.0, 0.0, 1.0]), seed=chance.randrange(1 << 32)),
            tenant=f"tenant-{chance.randrange(3)}",
            max_tokens=max(int(200 ** chance.random()), 1),
            stop=["e", "the"][: chance.randrange(3)],
            n=chance.choice([1, 1, 1, 1, 2, 3]),
            priority=chance.choice([0, 0, 0, 1]),
            ignore_eos=True,
            deadline_unix_ms=int(time.time() * 1000) + 200 if chance.random() < 0.03 else 0,
        )

    def _random_tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(7, self._vocabulary) for _ in range(count)]

    def _on_step(self, rows: StepRows) -> None:
        # On the engine's own thread, between two steps: nothing moves.
        engine = self._backend.engine
        self._outcome.most_three_bit = max(self._outcome.most_three_bit, engine.cache.stale.pool.held)
        if engine.counters.steps >= (self._outcome.counts + 1) * STEPS_BETWEEN_COUNTS:
            self._outcome.counts += 1
            try:
                engine.check_integrity()
            except AssertionError as error:
                self._miscounts.append(error)
        with self._changed:
            for key, event in rows:
                if isinstance(event, TextDelta):
                    self._open[key].append(f"{event.choice}:{event.text}" if event.choice else event.text)
                    if 0 < self._cancel_after.get(key, 0) <= len(self._open[key]):
                        self._backend.cancel(key)
                elif isinstance(event, Failed):
                    self._outcome.failed[event.code] = self._outcome.failed.get(event.code, 0) + 1
                    del self._open[key]
                elif isinstance(event, Finished):
                    self._end(key, is_cancelled=event.cancelled)
            self._changed.notify_all()

    def _end(self, key: int, *, is_cancelled: bool) -> None:
        pieces = self._open.pop(key)
        self._outcome.cancelled += is_cancelled
        self._outcome.finished += not is_cancelled
        kind = self._kinds.pop(key, None)
        if is_cancelled or kind is None:
            return
        # The first choice alone: a repeat asks for one.
        text = "".join(piece for piece in pieces if piece[:2] not in ("1:", "2:"))
        if kind in self._texts:
            self._outcome.compared += 1
            self._outcome.differing += text != self._texts[kind]
        elif len(self._texts) < 500:
            self._texts[kind] = text


def report(outcome: Outcome, arguments: argparse.Namespace) -> str:
    failed = ", ".join(f"{count} {code}" for code, count in sorted(outcome.failed.items())) or "none"
    return f"""# {arguments.requests} random requests, nothing lost

{datetime.now(UTC):%Y-%m-%d}. Made by `python -m benchmarks.engine.soak {" ".join(sys.argv[1:])}`:
the whole engine on a hybrid of one Gated DeltaNet and one attention layer with a draft layer, {AT_ONCE} requests at
once, prompts of up to {arguments.longest} tokens, memory for little more than the longest.

| | |
| --- | --- |
| requests that ended by themselves | {outcome.finished} |
| cancelled | {outcome.cancelled} |
| failed | {failed} |
| steps | {outcome.steps} |
| tokens | {outcome.tokens} |
| tokens found by prefix | {outcome.cached_tokens} |
| drafts verified, of these right | {outcome.drafted}, {outcome.accepted} |
| pages in three bits held at a time | {outcome.most_three_bit} |
| preemptions, of these to host memory | {outcome.preemptions}, {outcome.swaps} |
| requests repeated at temperature 0 | {outcome.compared} |
| of these with another text | {outcome.differing} |
| counts of all pages and slots | {outcome.counts} |
| pages and slots held at the end | 0 |
| seconds, on a machine with other work | {outcome.seconds:.0f} |

A wrong count, a held page, another text or any failure but a passed deadline ends the run with an error, without this
report. A small form runs with the tests.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--longest", type=int, default=4000, help="prompt tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draft-tokens", type=int, default=3, help="drafts that a step verifies; 0 = none")
    parser.add_argument("--kv-cache", default="auto", help="as ENGINE_KV_CACHE; staged: pages long past in three bits")
    parser.add_argument("--model", help="a narrow random hybrid if it is left out")
    parser.add_argument("--report", type=Path, help="write what came out to this Markdown file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model or str(write_tiny(Path(scratch) / "narrow", depth=DEPTH, **NARROW))
        soak = Soak(
            model, arguments.longest, arguments.seed, draft_tokens=arguments.draft_tokens, kv_cache=arguments.kv_cache
        )
        outcome = soak.run(arguments.requests)
    print(outcome)
    if outcome.differing or outcome.failed.keys() - {"deadline_exceeded"}:
        raise SystemExit("repeated requests differ, or requests failed")
    if arguments.report:
        arguments.report.write_text(report(outcome, arguments))


if __name__ == "__main__":
    main()

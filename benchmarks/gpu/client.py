"""What a gateway would see of the engine, from a process of its own: rates and times to the first token, over gRPC.

python -m benchmarks.gpu.client ADDRESS RESULTS.json CASE...   with CASE = concurrency:prompt:tokens
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from inference_grpc.client import EngineClient
from inference_grpc.core.request import Request, SamplingParams
from inference_grpc.events import Failed, Finished, TextDelta

IDS = range(300, 248_000)


async def one(engine: EngineClient, prompt: list[int], tokens: int) -> tuple[float, float, int, str]:
    """Times of the first text and of the end, the count of the engine, and the text."""
    first, text, count = 0.0, [], 0
    request = Request(
        str(uuid.uuid4()), prompt, sampling=SamplingParams(temperature=0.0), max_tokens=tokens, ignore_eos=True
    )
    async with engine.submit(request) as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                first = first or time.perf_counter()
                text.append(event.text)
            elif isinstance(event, Failed):
                raise RuntimeError(f"{event.code}: {event.message}")
            elif isinstance(event, Finished):
                count = event.usage.completion_tokens
    return first, time.perf_counter(), count, "".join(text)


async def case(engine: EngineClient, concurrency: int, prompt_tokens: int, tokens: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    prompts = [chance.choices(IDS, k=prompt_tokens) for _ in range(concurrency)]
    began = time.perf_counter()
    ended = await asyncio.gather(*(one(engine, prompt, tokens) for prompt in prompts))
    if any(count != tokens for _, _, count, _ in ended):
        raise RuntimeError(f"token counts {[count for _, _, count, _ in ended]}, expected {tokens} each")
    last_first, last = max(first for first, *_ in ended), max(end for _, end, *_ in ended)
    decoded = concurrency * (tokens - 1)
    return {
        "concurrency": concurrency,
        "prompt": prompt_tokens,
        "tokens": tokens,
        "seconds": last - began,
        # Prefill included; and from the last first token on, when all decode together.
        "tokens_per_s": concurrency * tokens / (last - began),
        "decode_tokens_per_s": decoded / (last - last_first) if tokens > 1 else 0.0,
        "ttft_ms": median(first - began for first, *_ in ended) * 1e3,
    }


async def same_alone(engine: EngineClient, tokens: int) -> dict[str, Any]:
    """Whether eight prompts give the same texts alone as together."""
    chance = random.Random(99)
    prompts = [chance.choices(IDS, k=100 + 37 * number) for number in range(8)]
    together = [text for *_, text in await asyncio.gather(*(one(engine, prompt, tokens) for prompt in prompts))]
    alone = [(await one(engine, prompt, tokens))[3] for prompt in prompts]
    return {"same": sum(a == b for a, b in zip(alone, together, strict=True)), "of": len(prompts), "tokens": tokens}


def keep(results: Path, found: dict[str, Any]) -> None:
    results.write_text(json.dumps(found, indent=1))


async def main(address: str, results: Path, cases: list[str]) -> None:
    found: dict[str, Any] = {"cases": []}
    async with EngineClient(address) as engine:
        await engine.connect()
        await case(engine, 1, 100, 8, seed=0)  # connections, first steps
        for number, text in enumerate(cases):
            if text.startswith("same:"):
                found["alone"] = await same_alone(engine, int(text[5:]))
            else:
                concurrency, prompt, tokens = (int(part) for part in text.split(":"))
                found["cases"].append(await case(engine, concurrency, prompt, tokens, seed=number + 1))
            keep(results, found)
            print(text, found["cases"][-1:] or found.get("alone"), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))

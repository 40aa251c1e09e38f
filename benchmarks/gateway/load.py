"""A closed-loop client: so many calls at once, each answer checked, the time of each piece noted."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field

import aiohttp

COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s?(\d+)')


@dataclass
class Result:
    wall_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    writes: int = 0
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)


async def run(url: str, headers: dict[str, str], body: dict[str, object], *, calls: int, at_once: int) -> Result:
    """Raises AssertionError on any answer that is not whole."""
    result = Result()
    left = iter(range(calls))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        began = time.perf_counter()
        await asyncio.gather(*(_caller(session, url, body, left, result) for _ in range(at_once)))
        result.wall_s = time.perf_counter() - began
    return result


async def _caller(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], left: object, result: Result
) -> None:
    for _ in left:  # type: ignore[attr-defined]
        began = last = time.perf_counter()
        pieces: list[bytes] = []
        async with session.post(url, json=body) as answer:
            async for piece in answer.content.iter_any():
                now = time.perf_counter()
                if pieces:
                    result.gaps_s.append(now - last)
                else:
                    result.ttft_s.append(now - began)
                last = now
                pieces.append(piece)
        text = b"".join(pieces)
        assert answer.status == 200, text[:300]
        assert not body.get("stream") or text.endswith(b"data: [DONE]\n\n"), text[-300:]
        found = COMPLETION_TOKENS.findall(text)
        assert found, text[-300:]
        result.tokens += int(found[-1])
        result.calls += 1
        result.writes += len(pieces)
        result.durations_s.append(last - began)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

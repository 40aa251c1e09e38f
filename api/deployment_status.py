"""Asks every engine how it is, for the operator's pages and the operations view."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from django.utils import timezone

from api import live
from inference_grpc.client import EngineClient, EngineInfo
from inference_grpc.errors import DeadlineExceeded, EngineError
from portal.catalog.selectors import DeploymentInfo
from portal.catalog.status import DeploymentStatus, Fact, record
from portal.operations.services import EngineFigures, record_samples

TIMEOUT_S = 5.0


def ask_deployments(deployments: Sequence[DeploymentInfo]) -> None:
    """Keeps each engine's answer or failure as its status, and a sample of every deployment. Safe to repeat; an engine
    that is slow delays no other. An upstream is not asked: its sample has the calls that run there, no more."""
    engines = [each for each in deployments if each.kind == "engine"]

    async def ask_all() -> list[EngineInfo | BaseException]:
        return await asyncio.gather(*(_ask(each.address) for each in engines), return_exceptions=True)

    figures: dict[int, EngineFigures | None] = dict.fromkeys(each.id for each in deployments)
    for deployment, answer in zip(engines, asyncio.run(ask_all()), strict=True):
        record(deployment.id, _status(answer))
        if isinstance(answer, EngineInfo):
            figures[deployment.id] = _figures(answer)
    if record_samples(figures, now=timezone.now()):
        live.announce_samples()


def _figures(info: EngineInfo) -> EngineFigures:
    return EngineFigures(
        running=info.running,
        waiting=info.waiting,
        max_sequences=info.max_sequences,
        pages_used=info.pages_total - info.pages_free,
        pages_total=info.pages_total,
        three_bit_pages_used=info.three_bit_pages_total - info.three_bit_pages_free,
        three_bit_pages_total=info.three_bit_pages_total,
        prompt_tokens=info.prompt_tokens,
        prefix_hit_tokens=info.prefix_hit_tokens,
        completion_tokens=info.completion_tokens,
        drafted_tokens=info.drafted_tokens,
        accepted_tokens=info.accepted_tokens,
    )


async def _ask(address: str) -> EngineInfo:
    client = EngineClient(address)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await client.get_info()
    finally:
        await client.close()


def _status(answer: EngineInfo | BaseException) -> DeploymentStatus:
    now = timezone.now()
    if isinstance(answer, EngineInfo):
        return DeploymentStatus(is_healthy=True, checked_at=now, facts=_facts(answer))
    if isinstance(answer, TimeoutError):
        return _away(DeadlineExceeded(f"no answer within {TIMEOUT_S:.0f} s"), now)
    if isinstance(answer, EngineError):
        return _away(answer, now)
    raise answer


def _away(error: EngineError, now: datetime) -> DeploymentStatus:
    return DeploymentStatus(is_healthy=False, checked_at=now, error_code=error.code, error=str(error))


def _facts(info: EngineInfo) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "model": info.model,
        "engine": info.engine_id,
        "version": info.version,
        "device": info.device,
        "precision": info.precision,
        "draft_head": info.draft_head,
        "context_tokens": info.context_tokens,
        "running": info.running,
        "max_sequences": info.max_sequences,
        "waiting": info.waiting,
        "pages_used": info.pages_total - info.pages_free,
        "pages_total": info.pages_total,
        "three_bit_pages_used": info.three_bit_pages_total - info.three_bit_pages_free,
        "three_bit_pages_total": info.three_bit_pages_total,
        "page_tokens": info.page_tokens,
        "prompt_tokens": info.prompt_tokens,
        "reused_tokens": info.prefix_hit_tokens,
        "output_tokens": info.completion_tokens,
        "drafted_tokens": info.drafted_tokens,
        "accepted_tokens": info.accepted_tokens,
    }
    return facts | {
        "drafted_by_position": list(info.drafted_per_position),
        "accepted_by_position": list(info.accepted_per_position),
    }

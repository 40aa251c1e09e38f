"""Asks every engine how it is, for the operator's pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from django.utils import timezone

from inference_grpc.client import EngineClient, EngineInfo
from inference_grpc.errors import EngineError
from portal.catalog.selectors import DeploymentInfo
from portal.catalog.status import DeploymentStatus, record

TIMEOUT_S = 5.0


def ask_engines(deployments: Sequence[DeploymentInfo]) -> None:
    """Records each one's answer or failure. Safe to repeat; an engine that is slow delays no other."""

    async def ask_all() -> list[EngineInfo | BaseException]:
        return await asyncio.gather(*(_ask(each.address) for each in deployments), return_exceptions=True)

    for deployment, answer in zip(deployments, asyncio.run(ask_all()), strict=True):
        record(deployment.id, _status(answer))


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
        return DeploymentStatus(is_healthy=False, checked_at=now, error=f"It did not answer within {TIMEOUT_S:.0f} s.")
    if isinstance(answer, EngineError):
        return DeploymentStatus(is_healthy=False, checked_at=now, error=str(answer))
    raise answer


def _facts(info: EngineInfo) -> dict[str, str | int | float]:
    used = info.pages_total - info.pages_free
    return {
        "Model": info.model,
        "Engine": info.engine_id,
        "Version": info.version,
        "Device": info.device,
        "Precision": info.precision,
        "Draft head": info.draft_head or "none",
        "Context": f"{info.context_tokens:,} tokens",
        "Running": f"{info.running} of {info.max_sequences}",
        "Waiting": info.waiting,
        "Pages in use": f"{used:,} of {info.pages_total:,}, {info.page_tokens} tokens each",
        "Prompt tokens": f"{info.prompt_tokens:,}, {info.prefix_hit_tokens:,} of them reused",
        "Output tokens": f"{info.completion_tokens:,}",
    }

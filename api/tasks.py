"""Periodic work of the API: receipts, records that a dead gateway left open, the credit copies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from api import credit, deployment_status
from api.idempotency import services as idempotency
from api.responses_store import services as responses_store
from billing.errors import JournalRestarted
from billing.reconciliation.services import EngineReceipt, apply_receipts, close_stale, cursor
from inference_grpc.client import EngineClient, Receipt
from inference_grpc.errors import EngineError
from portal.catalog.selectors import deployments

logger = logging.getLogger(__name__)

PAGE_RECEIPTS = 1000
# One run takes at most this many pages of an engine, so that one with a long journal does not starve the others.
PAGES_PER_RUN = 50


@shared_task(name="api.tasks.pull_receipts")  # type: ignore[untyped-decorator]  # Celery has no types
def pull_receipts() -> None:
    """Take new receipts from every engine. Safe to repeat and to overlap; an engine that is away is tried next time."""
    for address in sorted({deployment.address for deployment in deployments(kind="engine")}):
        try:
            taken = pull_from(address)
        except EngineError as error:
            logger.warning("receipts_not_pulled address=%s code=%s", address, error.code)
        except JournalRestarted as error:
            logger.error("receipts_refused address=%s error=%s", address, error)
        else:
            if taken:
                logger.info("receipts_pulled address=%s count=%s", address, taken)


def pull_from(address: str) -> int:
    """Receipts are acknowledged by the request after the one that brought them: by then they are committed."""
    taken = 0
    with asyncio.Runner() as runner:
        client = runner.run(_connect(address))
        try:
            source = runner.run(client.get_info()).engine_id
            for _ in range(PAGES_PER_RUN):
                stored_through = cursor(source)
                page = runner.run(client.list_receipts(stored_through, PAGE_RECEIPTS, stored_through))
                apply_receipts(source=source, receipts=list(_engine_receipts(page.receipts)))
                taken += len(page.receipts)
                if len(page.receipts) < PAGE_RECEIPTS:
                    break
        finally:
            runner.run(client.close())
    return taken


async def _connect(address: str) -> EngineClient:
    """The client belongs to the loop on which it is made."""
    return EngineClient(address)


def _engine_receipts(receipts: Iterable[Receipt]) -> Iterable[EngineReceipt]:
    for receipt in receipts:
        try:
            request_id = UUID(receipt.request_id)
        except ValueError:
            # A client that spoke to the engine itself; no gateway has a record under such an id.
            logger.warning("receipt_not_ours sequence=%s", receipt.sequence)
            continue
        usage = receipt.usage
        is_lost = receipt.status == "lost"
        yield EngineReceipt(
            sequence=receipt.sequence,
            request_id=request_id,
            model=receipt.model,
            status="failed" if is_lost else receipt.status,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=min(usage.reasoning_tokens, usage.completion_tokens),
            error_code=receipt.error_code or ("lost" if is_lost else ""),
            started_at=datetime.fromtimestamp(receipt.started_unix_ms / 1000, UTC),
            finished_at=datetime.fromtimestamp(receipt.finished_unix_ms / 1000, UTC),
            ttft_ms=receipt.ttft_ms or None,
            tenant=receipt.tenant,
        )


@shared_task(name="api.tasks.close_stale_records")  # type: ignore[untyped-decorator]  # Celery has no types
def close_stale_records() -> None:
    """Close what a dead gateway left open and no receipt explains: failed, free, hold released."""
    # Past the longest call, a gateway that still holds a record open is dead, or it would have finished it.
    older_than = timedelta(seconds=settings.REQUEST_TIMEOUT_S + settings.STALE_MARGIN_S)
    if closed := close_stale(older_than=older_than, now=timezone.now()):
        logger.warning("stale_records_closed count=%s", closed)


@shared_task(name="api.tasks.refresh_balances")  # type: ignore[untyped-decorator]  # Celery has no types
def refresh_balances() -> None:
    """Compare every loaded credit copy with PostgreSQL and repair it, without stopping calls."""
    for organization_id in credit.loaded_organizations():
        try:
            found = credit.refresh(organization_id)
        except credit.RefreshContended as error:
            logger.info("credit_not_refreshed organization_id=%s error=%s", organization_id, error)
            continue
        if found.drift_nano:
            logger.warning("credit_repaired organization_id=%s drift_nano=%s", organization_id, found.drift_nano)


@shared_task(name="api.tasks.ask_deployments")  # type: ignore[untyped-decorator]  # Celery has no types
def ask_deployments() -> None:
    """How each enabled deployment is, for the operator's pages and the operations view."""
    deployment_status.ask_deployments(deployments(is_enabled=True))


@shared_task(name="api.tasks.forget_kept_answers")  # type: ignore[untyped-decorator]  # Celery has no types
def forget_kept_answers() -> None:
    """Delete kept responses and answers under an Idempotency-Key whose time is over. Safe to repeat and to overlap."""
    now = timezone.now()
    responses, keys = responses_store.purge_expired(now=now), idempotency.purge_expired(now=now)
    if responses or keys:
        logger.info("kept_answers_forgotten responses=%s keys=%s", responses, keys)

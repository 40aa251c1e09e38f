"""The Valkey copy of each organization's credit: how it is loaded, corrected and checked against PostgreSQL.

PostgreSQL owns the truth: balance, and the hold of every call whose record is `started`. The copy `credit:{id}` answers
one question without a query: how much may a new call still hold? Reserving and settling change it (api/admission.py);
here is everything else. All of it is synchronous: signal receivers, tasks, and the gateway through a thread.

A refresh reads Valkey, then PostgreSQL, then writes Valkey. What happens in between would be lost, so `begin_refresh`
leaves a token in the hash, every settle and every adjustment removes it, and `commit_refresh` writes only where the
token still stands; else the refresh starts over. Reservations may go on: the commit keeps the holds it finds.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.utils import timezone

from api import counters, functions
from billing.ledger.selectors import credit_state
from billing.usage.selectors import counts_of
from portal.quotas import snapshot
from portal.quotas.use import measure

logger = logging.getLogger(__name__)

ATTEMPTS = 20
# A reservation has its opening row within milliseconds. One without a row after this time is of a gateway that died
# in between.
LOST_AFTER = timedelta(minutes=2)
# Of a running call that was loaded; one that was reserved has a plan, the other fields are no calls.
_WITHOUT_PLAN = re.compile(rb"\d+:\d+(\*|$)")
# Calls begun this long before a refresh, or later, are asked about one by one; covers the clocks of several gateways.
CLOCK_MARGIN = timedelta(seconds=5)


class RefreshContended(Exception):
    """The credit moved under each attempt; the copy is as it was. Try again later."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh found: `before_nano` is None when there was no copy."""

    before_nano: int | None
    available_nano: int

    @property
    def drift_nano(self) -> int:
        return 0 if self.before_nano is None else self.available_nano - self.before_nano


def key(organization_id: int) -> str:
    return f"credit:{organization_id}"


def _run(name: str, organization_id: int, *arguments: str | int) -> Any:  # as the function returns
    keys = [key(organization_id), counters.key(organization_id)]
    return functions.call(snapshot.client(), name, keys, *arguments)


def calls_without_plan(fields: list[bytes]) -> list[UUID]:
    """Of names and values of the hash: the running calls that Valkey had lost, and that came back from PostgreSQL."""
    calls = zip(fields[::2], fields[1::2], strict=True)
    return [UUID(name.decode()) for name, value in calls if _WITHOUT_PLAN.match(value)]


def adjust(organization_id: int, delta_nano: int) -> None:
    """The balance moved for another reason than a settled call. A copy that is not loaded stays so."""
    _run("adjust", organization_id, delta_nano)


def when_balance_changed(*, organization_id: int, delta_nano: int, **signal: object) -> None:
    """Receiver of billing's signal. Without Valkey nothing is lost: the next refresh finds the difference."""
    try:
        if delta_nano:
            adjust(organization_id, delta_nano)
        elif snapshot.client().exists(key(organization_id)):
            # The balance stays and yet more is available: holds were released by another than their gateway.
            refresh(organization_id)
    except RefreshContended:
        logger.info("credit_refresh_postponed organization_id=%s", organization_id)
    except redis.RedisError as error:
        logger.warning("credit_adjustment_postponed organization_id=%s error=%s", organization_id, type(error).__name__)


def refresh(organization_id: int) -> Refreshed:
    """Load the copy, or correct it, from PostgreSQL. Safe beside live calls; raises RefreshContended."""
    for _ in range(ATTEMPTS):
        token = secrets.token_hex(8)
        since = timezone.now() - CLOCK_MARGIN
        fields = _run("begin_refresh", organization_id, token)
        held_ids = [UUID(name) for name in fields if name not in ("available", "token")]
        state = credit_state(organization_id, request_ids=held_ids, since=since)
        answer = _run(
            "commit_refresh",
            organization_id,
            token,
            state.limit_nano,
            int(LOST_AFTER.total_seconds() * 1000),
            len(state.closed),
            *_taken(state.closed),
            *(value for request_id, hold in state.started.items() for value in (str(request_id), hold)),
        )
        if answer[0] == "ok":
            return Refreshed(int(answer[1]) if answer[1] else None, int(answer[2]))
    raise RefreshContended(f"The credit of organization {organization_id} moved during {ATTEMPTS} refreshes.")


def _taken(closed: list[UUID]) -> Iterator[str | int]:
    """Of each closed call its id and what limits count of it: requests, input tokens, output tokens, cost."""
    counts = counts_of(closed)
    for request_id in closed:
        yield str(request_id)
        for kind in ("requests", "input_tokens", "output_tokens", "spend"):
            yield measure(counts[request_id], kind, settings.CACHED_TOKEN_LIMIT_PERCENT)


def loaded_organizations() -> Iterator[int]:
    """Those with a copy: the ones that called lately."""
    for name in snapshot.client().scan_iter(match="credit:*", count=500):
        yield int(name.removeprefix("credit:"))

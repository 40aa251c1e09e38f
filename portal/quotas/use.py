"""How much of a calendar limit is used, from the usage records: for the limits page, and for gateways whose counters
were lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection, transaction
from django.utils import timezone

from billing.usage import selectors as usage
from billing.usage.running import Running, running
from portal.api_keys.models import ApiKey
from portal.organizations.models import Organization
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.snapshot import QuotaLimit, as_limit

CALENDAR = (Window.DAY, Window.WEEK, Window.MONTH, Window.LIFETIME)
TOKEN_KINDS = (QuotaKind.TOKENS, QuotaKind.INPUT_TOKENS, QuotaKind.OUTPUT_TOKENS)
# How calls ended whose tokens limits count.
TOKENS_COUNT = ("completed", "cancelled")
# Wider than any organization's life, and than any gateway's.
BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
END = datetime(9999, 1, 1, tzinfo=UTC)


class Counts(Protocol):
    """Sums of usage records."""

    @property
    def requests(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cost_nano(self) -> int: ...


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What records say: of a minute's limit, what started in the last 60 s; of calls at one time, what is under way.
    Spend is in nano-units. `resets_at` is None where nothing begins anew at a moment."""

    quota: Quota
    used: int
    resets_at: datetime | None

    @property
    def left(self) -> int:
        return max(0, self.quota.limit - self.used)

    @property
    def per_mille(self) -> int:
        if not self.quota.limit:
            return 1000
        return min(1000, 1000 * self.used // self.quota.limit)


def window_bounds(window: str, time_zone: str, now: datetime) -> tuple[datetime, datetime]:
    """Start and end of the calendar day, week (from Monday) or month of `now`, in the organization's zone."""
    if window == Window.LIFETIME:
        return BEGINNING, END
    midnight = now.astimezone(ZoneInfo(time_zone)).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if window == Window.DAY:
        return midnight, midnight + timedelta(days=1)
    if window == Window.WEEK:
        start = midnight - timedelta(days=midnight.weekday())
        return start, start + timedelta(days=7)
    start = midnight.replace(day=1)
    return start, (start + timedelta(days=32)).replace(day=1)


def counted_input(prompt_tokens: int, cached_tokens: int, cached_percent: int) -> int:
    """Input tokens as limits count them: a cached one counts `cached_percent` of a token."""
    return prompt_tokens - cached_tokens + cached_tokens * cached_percent // 100


def measure(counts: Counts, kind: str, cached_percent: int) -> int:
    """What `counts` take of a limit of this kind."""
    if kind == QuotaKind.REQUESTS:
        return counts.requests
    if kind == QuotaKind.SPEND:
        return counts.cost_nano
    if kind == QuotaKind.OUTPUT_TOKENS:
        return counts.completion_tokens
    counted = counted_input(counts.prompt_tokens, counts.cached_tokens, cached_percent)
    return counted if kind == QuotaKind.INPUT_TOKENS else counted + counts.completion_tokens


def used_in(organization_id: int, limit: QuotaLimit, start: datetime, end: datetime, cached_percent: int) -> int:
    """What records that started in [start, end) take of the limit, without running calls. One or two queries.

    As the gateways count: a failed call is a request, and no tokens.
    """
    only = usage.Only(
        model=limit.model,
        project_id=limit.scope_id if limit.scope == "project" else None,
        api_key_id=limit.scope_id if limit.scope == "api_key" else None,
        statuses=TOKENS_COUNT if limit.kind in TOKEN_KINDS else (),
    )
    group, keys = "total", {""}
    if limit.scope == "member":
        group, keys = "api_key", {str(key_id) for key_id in keys_of(organization_id, limit)}
    rows = usage.summary(organization_id, start, end, group, only=only)
    return sum(measure(row, limit.kind, cached_percent) for row in rows if row.key in keys)


@dataclass(frozen=True, slots=True)
class WindowUse:
    """What is used of a window, and which part of it are single calls."""

    used: int
    parts: dict[UUID, int]


def used_with(
    organization_id: int, limit: QuotaLimit, start: datetime, end: datetime, cached_percent: int, call_ids: list[UUID]
) -> WindowUse:
    """As `used_in`, and of these calls what those that run may take at most. All of one moment.

    `parts` has each of the calls that the limit counts in the window, with what `used` holds of it, also those that
    ended. Not inside of another transaction.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        used = used_in(organization_id, limit, start, end, cached_percent)
        calls = usage.calls_of(call_ids)
        ids = _ids_of(organization_id, limit)
    parts = {
        call_id: measure(call.counts, limit.kind, cached_percent)
        for call_id, call in calls.items()
        if start <= call.started_at < end and _counts(limit, ids, organization_id, call)
    }
    running = sum(part for call_id, part in parts.items() if calls[call_id].is_running)
    return WindowUse(used + running, parts)


def keys_of(organization_id: int, limit: QuotaLimit) -> set[int]:
    """The keys that the limit's member made."""
    made = ApiKey.objects.filter(organization_id=organization_id, created_by_id=limit.scope_id)
    return set(made.values_list("id", flat=True))


def running_of(organization_id: int, limit: QuotaLimit) -> int:
    """Calls under way that the limit counts. One or two queries."""
    ids = _ids_of(organization_id, limit)
    return sum(row.count for row in running(organization_id) if _counts(limit, ids, organization_id, row))


def _ids_of(organization_id: int, limit: QuotaLimit) -> set[int]:
    """Of the organization, the project or the keys that the limit is about."""
    if limit.scope == "organization":
        return {organization_id}
    return keys_of(organization_id, limit) if limit.scope == "member" else {limit.scope_id}


def _counts(limit: QuotaLimit, ids: set[int], organization_id: int, row: Running | usage.Call) -> bool:
    """Whether the limit counts calls of this project, key and model."""
    owner = {"organization": organization_id, "project": row.project_id}.get(limit.scope, row.api_key_id)
    return owner in ids and limit.model in ("", row.model)


def uses_of(organization: Organization, quotas: Iterable[Quota], *, cached_percent: int) -> list[QuotaUse]:
    """At most two queries for each limit."""
    now = timezone.now()
    uses = []
    for quota in quotas:
        limit = as_limit(quota)
        if quota.kind == QuotaKind.CONCURRENCY:
            uses.append(QuotaUse(quota, running_of(organization.id, limit), None))
            continue
        start, end = now - timedelta(seconds=60), now
        if quota.window in CALENDAR:
            start, end = window_bounds(quota.window, organization.time_zone, now)
        used = used_in(organization.id, limit, start, end, cached_percent)
        begins_anew = quota.window in CALENDAR and quota.window != Window.LIFETIME
        uses.append(QuotaUse(quota, used, end if begins_anew else None))
    return uses

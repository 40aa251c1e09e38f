"""Reads of usage: pages by keyset, sums by group. A request counts in the day and month in which it started."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db.models import BigIntegerField, Count, F, Func, Q, QuerySet, Sum

from billing.rollups.divisions import EVERYTHING, Only
from billing.rollups.selectors import Leaders, Ranking, UsageSum, costs, leaders, over_time, ranking, summary
from billing.usage.models import RecordStatus, UsageAdjustment, UsageRecord
from billing.usage.request_ids import ATTEMPTS, operation_of

__all__ = [
    "EVERYTHING",
    "Call",
    "FinishedCall",
    "Leaders",
    "Only",
    "Ranking",
    "RecordCounts",
    "RecordDetail",
    "UsageFilters",
    "UsagePage",
    "UsageSum",
    "active_by_deployment",
    "attempts_of",
    "calls_of",
    "costs",
    "counts_of",
    "finished_calls",
    "leaders",
    "microseconds_of",
    "over_time",
    "ranking",
    "record",
    "spent_nano",
    "summary",
    "total_hold_nano",
    "usage_page",
]


@dataclass(frozen=True)
class UsageFilters:
    """Empty means all. `start` and `end` bound the start of the request: [start, end)."""

    project_id: int | None = None
    api_key_id: int | None = None
    model: str = ""
    status: str = ""
    end_user: str = ""
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class UsagePage:
    rows: list[UsageRecord]
    # Pass it as `after` for the next, older page; None on the last one.
    next: str | None


def usage_page(
    organization_id: int, *, filters: UsageFilters | None = None, after: str | None = None, limit: int = 50
) -> UsagePage:
    """One page of records, newest first, in one query. Raises ValueError on an `after` that this did not make."""
    records = _filtered(organization_id, filters or UsageFilters())
    if after is not None:
        started_at, request_id = _read_cursor(after)
        records = records.filter(Q(started_at__lt=started_at) | Q(started_at=started_at, request_id__lt=request_id))
    rows = list(records.order_by("-started_at", "-request_id")[: limit + 1])
    more = len(rows) > limit
    rows = rows[:limit]
    return UsagePage(rows, _make_cursor(rows[-1]) if more else None)


def _filtered(organization_id: int, filters: UsageFilters) -> QuerySet[UsageRecord]:
    records = UsageRecord.objects.filter(organization_id=organization_id)
    exact = {
        "project_id": filters.project_id,
        "api_key_id": filters.api_key_id,
        "model": filters.model or None,
        "status": filters.status or None,
        "end_user": filters.end_user or None,
        "started_at__gte": filters.start,
        "started_at__lt": filters.end,
    }
    return records.filter(**{name: value for name, value in exact.items() if value is not None})


def _make_cursor(row: UsageRecord) -> str:
    text = f"{row.started_at.astimezone(UTC).isoformat()}|{row.request_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def _read_cursor(text: str) -> tuple[datetime, UUID]:
    try:
        moment, _, request_id = base64.urlsafe_b64decode(text.encode()).decode().partition("|")
        started_at, parsed_id = datetime.fromisoformat(moment), UUID(request_id)
    except (binascii.Error, UnicodeError, ValueError):
        raise ValueError("The page marker is not one of ours; start again from the first page.") from None
    if started_at.tzinfo is None:
        raise ValueError("The page marker is not one of ours; start again from the first page.")
    return started_at, parsed_id


@dataclass(frozen=True)
class RecordDetail:
    record: UsageRecord
    adjustments: list[UsageAdjustment]

    @property
    def cost_nano(self) -> int:
        """With every correction."""
        return int(self.record.cost_nano) + sum(int(row.cost_nano) for row in self.adjustments)


def record(organization_id: int, request_id: UUID) -> RecordDetail | None:
    """The record with its corrections; None when the organization has no such request."""
    found = UsageRecord.objects.filter(organization_id=organization_id, request_id=request_id).first()
    if found is None:
        return None
    return RecordDetail(found, list(found.adjustments.order_by("id")))


def attempts_of(organization_id: int, request_id: UUID) -> list[UsageRecord]:
    """All attempts of the operation that this request is one of, in their order. One query."""
    first = operation_of(request_id)
    ids = [UUID(int=first.int + number) for number in range(ATTEMPTS)]
    found = UsageRecord.objects.filter(organization_id=organization_id, request_id__in=ids)
    return list(found.order_by("request_id"))


class RecordCounts(NamedTuple):
    """What one request took, or may take; a failed one took no tokens of a limit."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int


def counts_of(request_ids: list[UUID]) -> dict[UUID, RecordCounts]:
    """Those of the finished records among `request_ids`, without corrections. One query, none for an empty list."""
    if not request_ids:
        return {}
    rows = UsageRecord.objects.filter(request_id__in=request_ids).exclude(status=RecordStatus.STARTED)
    return {row.request_id: _counts(row) for row in rows}


def _counts(row: UsageRecord) -> RecordCounts:
    return _taken(row.status, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano)


def _taken(status: str, prompt: int, cached: int, completion: int, cost_nano: int) -> RecordCounts:
    tokens = (0, 0, 0) if status == RecordStatus.FAILED else (prompt, cached, completion)
    return RecordCounts(1, *tokens, int(cost_nano))


@dataclass(frozen=True, slots=True)
class Call:
    """One that runs, with what it may take at most, or one that ended, with what it took."""

    project_id: int | None
    api_key_id: int | None
    model: str
    started_at: datetime
    is_running: bool
    counts: RecordCounts


def calls_of(request_ids: list[UUID]) -> dict[UUID, Call]:
    """Of those that have a record. One query, none for an empty list."""
    if not request_ids:
        return {}
    rows = UsageRecord.objects.filter(request_id__in=request_ids)
    return {row.request_id: _call(row) for row in rows}


def _call(row: UsageRecord) -> Call:
    is_running = row.status == RecordStatus.STARTED
    reserved = RecordCounts(1, row.reserved_input_tokens, 0, row.reserved_output_tokens, row.hold_nano)
    counts = reserved if is_running else _counts(row)
    return Call(row.project_id, row.api_key_id, row.model, row.started_at, is_running, counts)


class FinishedCall(NamedTuple):
    """Moments in microseconds since 1970: thousands of calls are read and replayed at a time."""

    started_us: int
    finished_us: int
    counts: RecordCounts

    @property
    def started_at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.started_us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTED = ("status", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_nano")


def _us(column: str) -> Func:
    """Of a moment, microseconds since 1970: read several times faster than its text, which thousands of rows notice."""
    return Func(
        F(column), template="(EXTRACT(EPOCH FROM %(expressions)s) * 1000000)::bigint", output_field=BigIntegerField()
    )


def microseconds_of(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def finished_calls(
    organization_id: int, *, filters: UsageFilters, api_key_ids: set[int] | None = None, newest: int
) -> list[FinishedCall]:
    """The `newest` ones, oldest first, without corrections; of these keys, or of all. One query."""
    records = _filtered(organization_id, filters).exclude(status=RecordStatus.STARTED).exclude(finished_at=None)
    if api_key_ids is not None:
        records = records.filter(api_key_id__in=api_key_ids)
    rows = records.order_by("-started_at").values_list(_us("started_at"), _us("finished_at"), *_COUNTED)[:newest]
    calls = [FinishedCall(started_us, finished_us, _taken(*row)) for started_us, finished_us, *row in rows]
    calls.reverse()
    return calls


def spent_nano(organization_id: int, start: datetime, end: datetime) -> int:
    """Cost of what started in [start, end), corrections included."""
    return sum(row.cost_nano for row in summary(organization_id, start, end))


def total_hold_nano() -> int:
    """Σ hold over all organizations: 0 when nothing runs."""
    return UsageRecord.objects.filter(status=RecordStatus.STARTED).aggregate(total=Sum("hold_nano"))["total"] or 0


def active_by_deployment() -> dict[int, tuple[int, int]]:
    """Running requests of each deployment, and how many of them stream."""
    started = UsageRecord.objects.filter(status=RecordStatus.STARTED, deployment_id__isnull=False)
    rows = started.values_list("deployment_id").annotate(
        calls=Count("request_id"), streams=Count("request_id", filter=Q(is_stream=True))
    )
    return {deployment_id: (calls, streams) for deployment_id, calls, streams in rows if deployment_id is not None}

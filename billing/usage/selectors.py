"""Reads of usage: pages by keyset, sums by group. A request counts in the day and month in which it started."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet, Sum

from billing.usage.models import RecordStatus, UsageAdjustment, UsageRecord


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


@dataclass(frozen=True)
class UsageSum:
    """Sums of one group, corrections included. `key` is the group's text: a model, an id, an ISO day."""

    key: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost_nano: int


# What `summary` groups by, as SQL over the record.
_GROUPS = {
    "total": "''",
    "model": "record.model",
    "project": "COALESCE(record.project_id::text, '')",
    "api_key": "COALESCE(record.api_key_id::text, '')",
    "status": "record.status",
    "protocol": "record.protocol",
    "end_user": "record.end_user",
    "hour": "to_char(date_trunc('hour', record.started_at AT TIME ZONE %(zone)s), 'YYYY-MM-DD\"T\"HH24:00')",
    "day": "to_char(record.started_at AT TIME ZONE %(zone)s, 'YYYY-MM-DD')",
    "month": "to_char(record.started_at AT TIME ZONE %(zone)s, 'YYYY-MM')",
}
_SUMMARY = """
SELECT key, SUM(requests)::bigint, SUM(prompt_tokens)::bigint, SUM(cached_tokens)::bigint,
       SUM(completion_tokens)::bigint, SUM(reasoning_tokens)::bigint, SUM(cost_nano)::bigint
  FROM (
    SELECT {group} AS key, 1 AS requests, record.prompt_tokens, record.cached_tokens, record.completion_tokens,
           record.reasoning_tokens, record.cost_nano
      FROM billing_usage_record record
     WHERE record.organization_id = %(organization_id)s AND record.status <> 'started'
       AND record.started_at >= %(start)s AND record.started_at < %(end)s
    UNION ALL
    SELECT {group}, 0, adjustment.prompt_tokens, adjustment.cached_tokens, adjustment.completion_tokens,
           adjustment.reasoning_tokens, adjustment.cost_nano
      FROM billing_usage_adjustment adjustment
      JOIN billing_usage_record record ON record.request_id = adjustment.record_id
     WHERE adjustment.organization_id = %(organization_id)s
       AND record.started_at >= %(start)s AND record.started_at < %(end)s
  ) parts GROUP BY key ORDER BY key
"""


def summary(
    organization_id: int, start: datetime, end: datetime, group_by: str = "total", *, time_zone: str = "UTC"
) -> list[UsageSum]:
    """Sums over [start, end) by `group_by`, one of total, model, project, api_key, status, protocol, end_user, hour,
    day, month; days and months are those of `time_zone`. One query; running requests are not counted."""
    if group_by not in _GROUPS:
        raise ValueError(f"group_by is {group_by!r}; it must be one of {', '.join(_GROUPS)}.")
    with connection.cursor() as cursor:
        cursor.execute(
            _SUMMARY.format(group=_GROUPS[group_by]),
            {"organization_id": organization_id, "start": start, "end": end, "zone": time_zone},
        )
        return [UsageSum(*row) for row in cursor.fetchall()]


def spent_nano(organization_id: int, start: datetime, end: datetime) -> int:
    """Cost of what started in [start, end), corrections included."""
    return sum(row.cost_nano for row in summary(organization_id, start, end))


def total_hold_nano() -> int:
    """Σ hold over all organizations: 0 when nothing runs."""
    return UsageRecord.objects.filter(status=RecordStatus.STARTED).aggregate(total=Sum("hold_nano"))["total"] or 0

"""How much of a calendar quota is used, from the usage records: what the limits page shows beside each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.utils import timezone

from billing.usage import selectors as usage
from portal.organizations.models import Organization
from portal.quotas.models import Quota, QuotaKind, Window


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """`used` is None for windows too short to be read from records. Spend is in nano-units."""

    quota: Quota
    used: int | None
    resets_at: datetime | None

    @property
    def per_mille(self) -> int:
        if self.used is None or not self.quota.limit:
            return 1000 if self.used is not None else 0
        return min(1000, 1000 * self.used // self.quota.limit)


def window_bounds(window: str, time_zone: str, now: datetime) -> tuple[datetime, datetime]:
    """Start and end of the calendar day or month that `now` is in, in the organization's zone."""
    zone = ZoneInfo(time_zone)
    local = now.astimezone(zone)
    if window == Window.DAY:
        start = datetime(local.year, local.month, local.day, tzinfo=zone)
        following = datetime.fromordinal(start.toordinal() + 1)
    else:
        start = datetime(local.year, local.month, 1, tzinfo=zone)
        following = datetime.fromordinal(start.replace(day=28).toordinal() + 4).replace(day=1)
    return start, following.replace(tzinfo=zone)


def uses_of(organization: Organization, quotas: list[Quota]) -> list[QuotaUse]:
    """One summary query per window and scope that has a quota: at most six."""
    now = timezone.now()
    sums: dict[tuple[str, str], dict[str, usage.UsageSum]] = {}
    uses = []
    for quota in quotas:
        if quota.window not in (Window.DAY, Window.MONTH):
            uses.append(QuotaUse(quota, None, None))
            continue
        start, end = window_bounds(quota.window, organization.time_zone, now)
        group, key = _group(quota)
        if (quota.window, group) not in sums:
            rows = usage.summary(organization.id, start, end, group)
            sums[quota.window, group] = {row.key: row for row in rows}
        row = sums[quota.window, group].get(key)
        uses.append(QuotaUse(quota, _measure(row, quota.kind) if row else 0, end))
    return uses


def _group(quota: Quota) -> tuple[str, str]:
    if quota.project_id:
        return "project", str(quota.project_id)
    if quota.api_key_id:
        return "api_key", str(quota.api_key_id)
    return "total", ""


def _measure(row: usage.UsageSum, kind: str) -> int:
    if kind == QuotaKind.REQUESTS:
        return row.requests
    if kind == QuotaKind.SPEND:
        return row.cost_nano
    return row.prompt_tokens + row.completion_tokens

"""Requests under way, as the records have them."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count

from billing.usage.models import RecordStatus, UsageRecord


@dataclass(frozen=True, slots=True)
class Running:
    """How many requests of one key and model are under way."""

    project_id: int | None
    api_key_id: int | None
    model: str
    count: int


def running(organization_id: int) -> list[Running]:
    """One query, over the index of open records."""
    rows = (
        UsageRecord.objects.filter(organization_id=organization_id, status=RecordStatus.STARTED)
        .values("project_id", "api_key_id", "model")
        .annotate(count=Count("request_id"))
    )
    return [Running(row["project_id"], row["api_key_id"], row["model"], row["count"]) for row in rows]

"""Reads of exports."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from billing.exports.models import Export, ExportState
from billing.exports.services import path_of


def exports_of(organization_id: int) -> QuerySet[Export]:
    """Newest first."""
    return Export.objects.filter(organization_id=organization_id).order_by("-id")


def find_export(organization_id: int, export_id: int) -> Export | None:
    return Export.objects.filter(organization_id=organization_id, id=export_id).first()


def is_downloadable(export: Export, *, now: datetime) -> bool:
    is_kept = export.expires_at is None or export.expires_at > now
    return export.state == ExportState.FINISHED and is_kept and path_of(export).exists()

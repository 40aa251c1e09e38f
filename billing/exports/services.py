"""Exports: asked for on a page, made by a worker, kept for a while."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from django.conf import settings
from django.db import connections, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.accounts.models import BillingAccount
from billing.errors import BillingError, ExportRefused, RecordsRetired
from billing.exports import focus, reports, requests
from billing.exports.csv_file import CsvWriter
from billing.exports.models import Export, ExportFormat, ExportKind, ExportState
from billing.exports.names import Names, names_of
from billing.exports.parquet import ParquetWriter
from billing.exports.sources import Scope, count_requests, scope_of
from billing.exports.table import Column, Row, Writer
from billing.invoices.periods import month
from billing.usage.partitions import retired_in

logger = logging.getLogger(__name__)

_BATCH = 2_000
_REPORT_EVERY_S = 1.0
# Of one organization at a time: each holds a worker.
_MOST_WAITING = 5
# A worker that has said nothing for so long is gone.
_LEFT_AFTER = timedelta(hours=2)


@transaction.atomic
def request_export(
    *,
    organization_id: int,
    kind: str,
    file_format: str,
    period: str,
    group_by: str = "",
    project_id: int | None = None,
    api_key_id: int | None = None,
    model: str = "",
    end_user: str = "",
    actor_id: int | None,
) -> Export:
    """Queue a file. Raises InvalidPeriod, RecordsRetired, and ExportRefused naming what does not go together."""
    account = BillingAccount.objects.get(organization_id=organization_id)
    bounds = month(period, account.time_zone)
    if retired := retired_in(bounds.start, bounds.end):
        raise RecordsRetired(retired.period, retired.retired_at)
    if kind not in ExportKind.values or file_format not in ExportFormat.values:
        raise ExportRefused(f"{kind!r} as {file_format!r} is no export; see the list of kinds and formats.")
    is_report = kind in (ExportKind.SHOWBACK, ExportKind.CHARGEBACK)
    if is_report and group_by not in reports.DIVISIONS:
        raise ExportRefused(f"A {kind} report needs a division, one of {', '.join(reports.DIVISIONS)}.")
    waiting = Export.objects.filter(
        organization_id=organization_id, state__in=[ExportState.QUEUED, ExportState.RUNNING]
    )
    if waiting.count() >= _MOST_WAITING:
        raise ExportRefused(
            _("%(count)s exports are being made already; wait for one of them.") % {"count": _MOST_WAITING}
        )
    narrows = kind == ExportKind.USAGE
    export = Export.objects.create(
        organization_id=organization_id,
        kind=kind,
        format=file_format,
        period=period,
        group_by=group_by if is_report else "",
        project_id=project_id if narrows else None,
        api_key_id=api_key_id if narrows else None,
        model=model if narrows else "",
        end_user=end_user if narrows else "",
        actor_id=actor_id,
    )
    transaction.on_commit(partial(_enqueue, export.id), robust=True)
    return export


def make(export_id: int) -> Export | None:
    """Write the file. None when another worker has it or it is done; a killed worker's export is begun anew."""
    claimed = Export.objects.filter(id=export_id, state=ExportState.QUEUED).update(state=ExportState.RUNNING)
    if not claimed:
        return None
    export = Export.objects.get(id=export_id)
    try:
        _write(export)
    except BillingError as error:
        export.state, export.error = ExportState.FAILED, str(error)[:300]
    except Exception as error:
        # The edge of one export: its reader learns that it failed, and the task's log says why.
        Export.objects.filter(id=export_id).update(
            state=ExportState.FAILED, error=f"It broke off: {type(error).__name__}.", finished_at=timezone.now()
        )
        raise
    else:
        export.state = ExportState.FINISHED
    export.finished_at = timezone.now()
    export.expires_at = export.finished_at + timedelta(days=settings.EXPORT_RETENTION_DAYS)
    export.save()
    logger.info("export_made export_id=%s state=%s rows=%s", export.id, export.state, export.row_count)
    return export


def path_of(export: Export) -> Path:
    """Where the file lies; it is there while the export is finished and not expired."""
    folder: Path = settings.VAR_DIR / "exports"
    return folder / f"{export.id}.{export.format}"


def file_name(export: Export) -> str:
    """What the downloaded file is called; a FOCUS file names the version it follows."""
    kind = f"focus-{focus.VERSION}" if export.kind == ExportKind.FOCUS else str(export.kind)
    division = f"-by-{export.group_by}" if export.group_by else ""
    return f"{kind}{division}-{export.period}.{export.format}"


def _write(export: Export) -> None:
    path = path_of(export)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    # One transaction, so that the file is of one moment and the server's cursor lives.
    with transaction.atomic(), unfinished.open("wb") as stream:
        scope, names = scope_of(export), names_of(export.organization_id)
        columns, rows = _content(export, scope, names)
        writer = _writer(export, stream, columns)
        reported_at = time.monotonic()
        for batch in _batches(rows):
            writer.write(batch)
            export.row_count += len(batch)
            if time.monotonic() - reported_at > _REPORT_EVERY_S:
                _report_progress(export)
                reported_at = time.monotonic()
        writer.close()
    with unfinished.open("rb") as stream:
        export.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    export.size_bytes = unfinished.stat().st_size
    unfinished.replace(path)


def _content(export: Export, scope: Scope, names: Names) -> tuple[tuple[Column, ...], Iterator[Row]]:
    if export.kind == ExportKind.USAGE:
        export.row_total = count_requests(export, scope)
        return requests.COLUMNS, requests.rows(export, scope, names)
    if export.kind == ExportKind.FOCUS:
        return focus.COLUMNS, focus.rows(scope, names)
    if export.kind == ExportKind.SHOWBACK:
        return reports.SHOWBACK, reports.showback(scope, export.group_by, names)
    return reports.CHARGEBACK, reports.chargeback(scope, export.group_by, names)


def _writer(export: Export, stream: BinaryIO, columns: tuple[Column, ...]) -> Writer:
    if export.format == ExportFormat.PARQUET:
        notes = {"focus_version": focus.VERSION} if export.kind == ExportKind.FOCUS else {}
        return ParquetWriter(stream, columns, {"period": export.period, **notes})
    return CsvWriter(stream, columns)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def _report_progress(export: Export) -> None:
    """Seen by others at once: on a connection of its own, since ours is inside a transaction."""
    connection = connections["default"].copy()
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE billing_export SET row_count = %s, row_total = %s WHERE id = %s",
                [export.row_count, export.row_total, export.id],
            )
    finally:
        connection.close()


def forget_and_find_left(*, now: datetime) -> list[int]:
    """Remove files past their time; returns the exports that no worker makes: never begun, or left half-way."""
    for export in Export.objects.filter(state=ExportState.FINISHED, expires_at__lte=now):
        path_of(export).unlink(missing_ok=True)
    Export.objects.filter(state=ExportState.RUNNING, created_at__lt=now - _LEFT_AFTER).update(
        state=ExportState.QUEUED, row_count=0
    )
    left = Q(state=ExportState.QUEUED, created_at__lt=now - timedelta(minutes=2))
    return list(Export.objects.filter(left).order_by("id").values_list("id", flat=True))


def _enqueue(export_id: int) -> None:
    from billing.tasks import make_export

    make_export.delay(export_id)

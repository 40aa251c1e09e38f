"""Removing old months of usage records: whole partitions, and only what nothing needs row by row any more.

A month goes when it ended USAGE_RETENTION_MONTHS ago, is closed in reconciliation, all of it that costs anything is on
issued invoices, and the rollups hold exactly its sums. Rollups, invoices, ledger and a row with the month's own sums
stay, so that every amount can still be accounted for; single requests cannot.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import OperationalError, connection, transaction

from billing.errors import RetentionRefused
from billing.reconciliation.models import PeriodClose
from billing.reconciliation.periods import bounds_of, forget_receipts_of
from billing.rollups import services as rollups
from billing.usage.models import RetiredMonth
from billing.usage.partitions import LOCK_TIMEOUT, is_lock_timeout, retired_in
from billing.usage.request_ids import moment_of

logger = logging.getLogger(__name__)


_PARTITIONS = """
SELECT part.relname, bounds[1]::uuid, bounds[2]::uuid, pg_total_relation_size(part.oid)::bigint
  FROM pg_inherits JOIN pg_class part ON part.oid = inhrelid
  CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(part.relpartbound, part.oid),
        'FROM \\((?:MINVALUE|''([0-9a-f-]+)'')\\) TO \\(''([0-9a-f-]+)''\\)') AS bounds) AS bound
 WHERE inhparent = 'billing_usage_record'::regclass AND bounds IS NOT NULL ORDER BY bounds[2]
"""
_MONTHS = """
SELECT to_char(record.started_at AT TIME ZONE 'UTC', 'YYYY-MM') AS period, COUNT(*), SUM(record.cost_nano)::bigint,
       COALESCE(SUM(adjustment.adjustments), 0)::bigint, COALESCE(SUM(adjustment.cost_nano), 0)::bigint,
       COUNT(*) FILTER (WHERE record.status = 'started'),
       COUNT(*) FILTER (WHERE record.invoice_id IS NULL AND record.cost_nano <> 0)
         + COALESCE(SUM(adjustment.not_invoiced), 0)::bigint
  FROM {partition} record
  LEFT JOIN (
    SELECT record_id, COUNT(*) AS adjustments, SUM(cost_nano) AS cost_nano,
           COUNT(*) FILTER (WHERE invoice_id IS NULL AND cost_nano <> 0) AS not_invoiced
      FROM billing_usage_adjustment WHERE {in_range} GROUP BY record_id) adjustment
    ON adjustment.record_id = record.request_id
 GROUP BY 1 ORDER BY 1
"""
_PENDING = """
SELECT COUNT(*) FROM billing_rollup_pending WHERE {in_range}
    OR adjustment_id IN (SELECT id FROM billing_usage_adjustment WHERE {in_range})
"""
# Of a request id named record_id.
_IN_RANGE = "(%(first_id)s::uuid IS NULL OR record_id >= %(first_id)s::uuid) AND record_id < %(until_id)s::uuid"


@dataclass(frozen=True)
class Month:
    """One UTC month of a partition. A wrong clock may have put a few rows into a neighbour's."""

    period: str
    records: int
    cost_nano: int
    adjustments: int
    adjusted_nano: int


@dataclass(frozen=True)
class Partition:
    """Records with ids from `first_id` (None: from the beginning) to before `until_id`, and what keeps them."""

    name: str
    first_id: UUID | None
    until_id: UUID
    end: datetime
    size_bytes: int
    months: list[Month]
    # Why it must stay, in words; empty: it goes with the next run.
    blockers: list[str]

    @property
    def records(self) -> int:
        return sum(month.records for month in self.months)

    @property
    def cost_nano(self) -> int:
        return sum(month.cost_nano + month.adjusted_nano for month in self.months)


def cutoff(now: datetime, months: int) -> datetime:
    """Partitions that ended then or before are old enough."""
    number = now.year * 12 + now.month - 1 - months
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)


def old_partitions(*, now: datetime, months: int | None = None) -> list[Partition]:
    """Those past their time that hold something, oldest first, with what keeps each; none while no retention is set."""
    months = settings.USAGE_RETENTION_MONTHS if months is None else months
    if months < 1:
        return []
    found = []
    with connection.cursor() as cursor:
        cursor.execute(_PARTITIONS)
        for name, first_id, until_id, size_bytes in cursor.fetchall():
            end = moment_of(until_id)
            if end <= cutoff(now, months):
                months_of, blockers = _look_at(name, first_id, until_id)
                if months_of:
                    found.append(Partition(name, first_id, until_id, end, size_bytes, months_of, blockers))
    return found


def _look_at(partition: str, first_id: UUID | None, until_id: UUID) -> tuple[list[Month], list[str]]:
    closed = set(PeriodClose.objects.values_list("period", flat=True))
    ids = {"first_id": first_id, "until_id": until_id}
    months, blockers = [], []
    with connection.cursor() as cursor:
        cursor.execute(_MONTHS.format(partition=partition, in_range=_IN_RANGE), ids)
        for period, records, cost_nano, adjustments, adjusted_nano, started, unbilled in cursor.fetchall():
            months.append(Month(period, records, cost_nano, adjustments, adjusted_nano))
            if period not in closed:
                blockers.append(f"{period} is not closed in reconciliation")
            if started:
                blockers.append(f"{started:,} calls of {period} are not finished")
            if unbilled:
                blockers.append(f"{unbilled:,} records or corrections of {period} are on no invoice")
        cursor.execute(_PENDING.format(in_range=_IN_RANGE), ids)
        if pending := cursor.fetchone()[0]:
            blockers.append(f"{pending:,} ended calls are not in the rollups yet")
    return months, blockers


def retire(partition: Partition, *, actor_name: str, now: datetime) -> list[RetiredMonth]:
    """Remove the partition and the corrections of its records; keeps a row for each month with its sums.

    Raises RetentionRefused where something keeps it, or the rollups differ from the records. All or nothing: a repeat
    after a failure begins anew.
    """
    for month in partition.months:
        _require_rolled_up(month.period, now=now)
        forget_receipts_of(month.period)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        # Nothing is written into it from here on, so what is looked at now is what goes.
        cursor.execute(f"LOCK TABLE {partition.name} IN SHARE ROW EXCLUSIVE MODE")
        months, blockers = _look_at(partition.name, partition.first_id, partition.until_id)
        if blockers:
            raise RetentionRefused(partition.name, "; ".join(blockers))
        kept = RetiredMonth.objects.bulk_create(
            RetiredMonth(
                period=month.period,
                partition=partition.name,
                first_id=partition.first_id,
                until_id=partition.until_id,
                records=month.records,
                cost_nano=month.cost_nano,
                adjustments=month.adjustments,
                adjusted_nano=month.adjusted_nano,
                retired_at=now,
                actor_name=actor_name,
            )
            for month in months
        )
        cursor.execute("ALTER TABLE billing_usage_adjustment DISABLE TRIGGER billing_no_delete")
        cursor.execute(
            f"DELETE FROM billing_usage_adjustment WHERE record_id IN (SELECT request_id FROM {partition.name})"  # noqa: S608 - a name from the catalogue
        )
        # What refers to the deleted rows is checked now: a table with checks outstanding cannot be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_usage_adjustment ENABLE TRIGGER billing_no_delete")
        cursor.execute(f"ALTER TABLE billing_usage_record DETACH PARTITION {partition.name}")
        cursor.execute(f"DROP TABLE {partition.name}")
    logger.info("usage_retired partition=%s records=%s", partition.name, partition.records)
    return kept


def _require_rolled_up(period: str, *, now: datetime) -> None:
    start, end = bounds_of(period)
    if retired_in(start, end):
        # It was compared when the most of it went; what lies here is what a clock put beside it.
        return
    for number in range((end - start).days):
        day = start + timedelta(days=number)
        if found := rollups.compare_day(day, now=now):
            raise RetentionRefused(
                period, f"the rollups of {day:%Y-%m-%d} differ from the records ({found[0].table}); rebuild them first"
            )


def retire_due(*, now: datetime) -> int:
    """Remove every partition that may go; returns how many. A refused one stays, is logged, and stops no other."""
    retired = 0
    for partition in old_partitions(now=now):
        if partition.blockers or (not partition.months and partition.first_id is None):
            continue
        try:
            retire(partition, actor_name="", now=now)
        except RetentionRefused as error:
            logger.error("usage_not_retired partition=%s reason=%s", partition.name, error)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            logger.warning("usage_not_retired partition=%s reason=the table is held by another", partition.name)
        else:
            retired += 1
    return retired

"""Fills a database with as much as a large service has, for measuring pages: always the same for the same arguments.

Rows go in by COPY and INSERT ... SELECT with the triggers off, since one at a time would take days; then the
projections are computed from what was written, so that the books of a seeded database balance (`rebuild_balances
--compare`, `rebuild_rollups --compare`). An organization's size follows its rank: the first has a tenth of everything,
the last almost nothing. An interrupted run leaves nothing behind, and can be begun again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.apps import apps
from django.db import connection, transaction

from billing.ledger import audit
from billing.reconciliation.rollups import roll_hours
from billing.rollups.services import ROLLUP_TABLES, fill_day, take_pending
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.partitions import make_partitions
from portal.operations.seeding.activity import make_activity
from portal.operations.seeding.calls import make_calls
from portal.operations.seeding.indexes import without_indexes
from portal.operations.seeding.invoices import make_invoices
from portal.operations.seeding.months import join_months, make_months
from portal.operations.seeding.plan import Say, Size, slug_of
from portal.operations.seeding.samples import make_samples
from portal.operations.seeding.tenants import make_tenants

__all__ = ["AlreadySeeded", "Size", "seed"]

# For this connection, while it seeds: millions of rows are sorted and indexed at a time.
_SETTINGS = {"work_mem": "256MB", "maintenance_work_mem": "1GB", "jit": "off", "synchronous_commit": "off"}


class AlreadySeeded(Exception):
    pass


def seed(size: Size, *, say: Say) -> None:
    """All of it. Raises AlreadySeeded when the database has a seeded organization, or any usage record."""
    _refuse_another()
    with _settings():
        with transaction.atomic(), _triggers_off():
            _fill(size, say)
        make_partitions(now=size.end)
        say(f"{_correct_differing(size.end):,} records corrected by their receipts")
        take_pending(now=size.end)
        say(f"match rates of {roll_hours(now=size.end):,} hours")
        _analyze(vacuum=True)
        say("vacuumed and analyzed")


def _fill(size: Size, say: Say) -> None:
    months = size.months()
    make_months(months)
    made = make_tenants(size, say)
    with without_indexes("billing_ledger_transaction", "billing_ledger_entry", "billing_receipt"):
        first_invoices = make_calls(size, made, say)
    say("ledger and receipts indexed")
    make_invoices(months, first_invoices, made.organization_ids, say)
    join_months(months)
    say("usage records indexed")
    make_samples(size, made, say)
    make_activity(size, made, say)
    _analyze()
    audit.rebuild()
    say("balances computed")
    with without_indexes(*ROLLUP_TABLES):
        for number in range(size.days + 1):
            day = size.start + timedelta(days=number)
            say(f"rollups of {day:%Y-%m-%d}: {fill_day(day, now=size.end):,} records")
    say("rollups indexed")


def _refuse_another() -> None:
    if apps.get_model("portal", "Organization").objects.filter(slug=slug_of(0)).exists():
        raise AlreadySeeded("This database is seeded already; make a fresh one to seed it again.")
    if apps.get_model("billing", "UsageRecord").objects.exists():
        raise AlreadySeeded("This database has usage records of its own; seed one that has none.")


def _analyze(*, vacuum: bool = False) -> None:
    """Without it the planner takes the full tables for empty ones."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)" if vacuum else "ANALYZE")


@contextmanager
def _settings() -> Iterator[None]:
    with connection.cursor() as cursor:
        for name, value in _SETTINGS.items():
            cursor.execute(f"SET {name} = '{value}'")
        try:
            yield
        finally:
            if not connection.needs_rollback:
                for name in _SETTINGS:
                    cursor.execute(f"RESET {name}")


@contextmanager
def _triggers_off() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")


def _correct_differing(now: datetime) -> int:
    """As reconciliation does when it finds them."""
    receipts = apps.get_model("billing", "Receipt").objects.filter(match_class="differ")
    records = apps.get_model("billing", "UsageRecord").objects.select_related("price")
    count = 0
    for receipt in receipts.order_by("id").iterator():
        adjust_record(
            record=records.get(request_id=receipt.request_id),
            status=receipt.status,
            counts=Counts(receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens, 0),
            key=f"receipt:{receipt.source}:{receipt.sequence}",
            reason=f"receipt {receipt}",
            now=now,
        )
        count += 1
    return count

"""Fills a database with as much as a large service has, for measuring pages: always the same for the same arguments.

Rows go in by COPY and INSERT ... SELECT from two sessions with the triggers off, since one at a time would take days;
then the projections are computed from what was written, so that the books of a seeded database balance
(`rebuild_balances --compare`, `rebuild_rollups --compare`). An organization's size follows its rank: the first has a
tenth of everything, the last almost nothing. An interrupted run leaves a part behind: its database is for dropping.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from django.apps import apps
from django.db import connection

from billing.ledger import audit
from billing.ledger.reasons import Reason
from billing.reconciliation.rollups import roll_hours
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.partitions import make_partitions
from portal.operations.seeding.activity import make_activity
from portal.operations.seeding.calls import make_calls
from portal.operations.seeding.indexes import without_indexes
from portal.operations.seeding.invoices import make_invoices
from portal.operations.seeding.months import join_months, make_months
from portal.operations.seeding.plan import Made, Say, Size, slug_of
from portal.operations.seeding.rollups import make_rollups
from portal.operations.seeding.samples import make_samples
from portal.operations.seeding.sessions import fast_session, run_together
from portal.operations.seeding.tenants import make_tenants

__all__ = ["AlreadySeeded", "Size", "seed"]


class AlreadySeeded(Exception):
    pass


def seed(size: Size, *, say: Say) -> None:
    """All of it. Raises AlreadySeeded when the database has a seeded organization, or any usage record."""
    _refuse_another()
    with fast_session():
        make_months(size.months())
        made = make_tenants(size, say)
        _fill(size, made, say)
        make_partitions(now=size.end)
        _analyze()
        audit.rebuild()
        say("balances computed")
    with fast_session(triggers=True):
        say(f"{_correct_differing(size.end):,} records corrected by their receipts")
        make_rollups(size, say, beside=[lambda: f"match rates of {roll_hours(now=size.end):,} hours"])
        _vacuum(say)


def _fill(size: Size, made: Made, say: Say) -> None:
    months = size.months()
    with without_indexes("billing_ledger_transaction", "billing_ledger_entry", "billing_receipt", say=say):
        first_invoices = make_calls(size, made, say)
        make_samples(size, made, say)

    def finish_months() -> str:
        make_invoices(months, first_invoices, made.organization_ids, say)
        join_months(months)
        return "usage records indexed"

    def make_rest() -> str:
        make_activity(size, made, say)
        return ""

    run_together([finish_months, make_rest], say)


def _refuse_another() -> None:
    if apps.get_model("portal", "Organization").objects.filter(slug=slug_of(0)).exists():
        raise AlreadySeeded("This database is seeded already; make a fresh one to seed it again.")
    if apps.get_model("billing", "UsageRecord").objects.exists():
        raise AlreadySeeded("This database has usage records of its own; seed one that has none.")


def _analyze() -> None:
    """Without it the planner takes the full tables for empty ones."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _vacuum(say: Say) -> None:
    """The largest tables first. What is all visible can be read from indexes alone."""

    def vacuum(table: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(f'VACUUM (ANALYZE) "{table}"')
        return ""

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            " ORDER BY relpages DESC"
        )
        tables = [row[0] for row in cursor.fetchall()]
    run_together([partial(vacuum, table) for table in tables], say)
    _analyze()
    say("vacuumed and analyzed")


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
            reason=Reason.RECEIPT.about(receipt, length=200),
            now=now,
        )
        count += 1
    return count

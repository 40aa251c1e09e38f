"""Fills a database with as much as a large service has, for measuring pages: always the same for the same arguments.

Rows go in by COPY with the triggers off, since one at a time would take days; then the projections are computed from
what was written, so that the books of a seeded database balance (`rebuild_balances --compare`, `rebuild_rollups
--compare`). An organization's size follows its rank: the first has a tenth of everything, the last almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.apps import apps
from django.db import connection, transaction

from billing.ledger import audit
from billing.reconciliation.rollups import roll_hours
from billing.rollups.services import rebuild_day
from portal.operations.seeding.calls import make_calls
from portal.operations.seeding.plan import Say, Size, slug_of
from portal.operations.seeding.samples import make_samples
from portal.operations.seeding.tenants import make_tenants

__all__ = ["AlreadySeeded", "Size", "seed"]


class AlreadySeeded(Exception):
    pass


def seed(size: Size, *, say: Say) -> None:
    """All of it. Raises AlreadySeeded when the database has a seeded organization."""
    organization = apps.get_model("portal", "Organization")
    if organization.objects.filter(slug=slug_of(0)).exists():
        raise AlreadySeeded("This database is seeded already; make a fresh one to seed it again.")
    with transaction.atomic(), _triggers_off():
        made = make_tenants(size, say)
        make_calls(size, made, say)
        audit.rebuild()
        make_samples(size, made, say)
    first_day = size.end - timedelta(days=size.days)
    for number in range(size.days + 1):
        day = first_day + timedelta(days=number)
        say(f"rollups of {day:%Y-%m-%d}: {rebuild_day(day, now=size.end):,} records")
    say(f"match rates of {roll_hours(now=size.end):,} hours")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@contextmanager
def _triggers_off() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")

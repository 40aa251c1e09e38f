"""What the drill asks of the running product from inside, with its environment: one command, one JSON line.

tenants     three organizations with a key each: one prepaid, one postpaid, one with a little credit and a limit
unpulled    receipts that lie in the engines' journals and nowhere else
books       sums, match rates, invoices of everything that was called
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from asgiref.sync import sync_to_async  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from billing.accounts.services import change_credit_limit  # noqa: E402
from billing.invoices.runs import run_month  # noqa: E402
from billing.ledger import audit  # noqa: E402
from billing.ledger.services import grant_credit  # noqa: E402
from billing.reconciliation.selectors import match_rates  # noqa: E402
from billing.reconciliation.services import cursor  # noqa: E402
from billing.rollups import services as rollups  # noqa: E402
from inference_grpc.client import EngineClient  # noqa: E402
from portal.api_keys.services import issue  # noqa: E402
from portal.catalog.selectors import deployments  # noqa: E402
from portal.organizations.models import Project  # noqa: E402
from portal.organizations.services import create_organization  # noqa: E402
from portal.users.models import User  # noqa: E402

USD = 1_000_000_000
# Name, credit granted, credit limit. The third burns its credit up and owes the rest.
TENANTS = (("Prepaid", 10_000 * USD, 0), ("Postpaid", 0, 10_000 * USD), ("Both", 100_000_000, 10_000 * USD))


def tenants() -> list[dict[str, Any]]:
    made = []
    for name, credit_nano, limit_nano in TENANTS:
        owner = User.objects.create_user(f"{name.lower()}@drill.localdomain", name=name)
        organization = create_organization(owner=owner, name=f"Drill {name}")
        if credit_nano:
            grant_credit(
                organization_id=organization.id, amount_nano=credit_nano, reason="drill", key=f"drill:{organization.id}"
            )
        if limit_nano:
            change_credit_limit(organization_id=organization.id, credit_limit_nano=limit_nano)
        project = Project.objects.get(organization=organization, is_default=True)
        key = issue(project=project, name="drill", actor=None).secret
        made.append({"organization_id": organization.id, "name": name, "key": key})
    return made


_LEFT = """
SELECT (SELECT COUNT(*) FROM billing_usage_record WHERE status = 'started'),
       (SELECT COALESCE(SUM(hold_nano), 0) FROM billing_usage_record WHERE status = 'started')::bigint,
       (SELECT COUNT(*) FROM billing_receipt WHERE NOT is_settled)
"""


def unpulled() -> int:
    return sum(
        asyncio.run(_unpulled_from(address))
        for address in {deployment.address for deployment in deployments(kind="engine")}
    )


async def _unpulled_from(address: str) -> int:
    """Acknowledges nothing, so the journal stays as it is."""
    async with EngineClient(address) as client:
        source = (await client.get_info()).engine_id
        return len((await client.list_receipts(await sync_to_async(cursor)(source))).receipts)


def _left() -> dict[str, int]:
    with connection.cursor() as rows:
        rows.execute(_LEFT)
        started, held_nano, unsettled = rows.fetchone()
    return {"started": started, "held_nano": held_nano, "unsettled": unsettled}


_SUMS = """
SELECT (SELECT COUNT(*) FROM billing_usage_record),
       (SELECT COALESCE(SUM(cost_nano), 0) FROM billing_usage_record)::bigint,
       (SELECT COALESCE(SUM(cost_nano), 0) FROM billing_usage_adjustment)::bigint,
       (SELECT COUNT(*) FROM billing_usage_adjustment),
       (SELECT COALESCE(SUM(entry.amount_nano), 0) FROM billing_ledger_entry entry
          JOIN billing_ledger_account account ON account.id = entry.account_id WHERE account.kind = 'revenue')::bigint,
       (SELECT COALESCE(SUM(entry.amount_nano), 0) FROM billing_ledger_entry entry
          JOIN billing_ledger_transaction posted ON posted.id = entry.transaction_id
          JOIN billing_credit_grant credit ON credit.key = substr(posted.key, 7)
          JOIN billing_ledger_account account ON account.id = entry.account_id
         WHERE posted.kind = 'grant' AND credit.kind = 'correction' AND account.kind = 'adjustments')::bigint,
       (SELECT COALESCE(SUM(amount_nano), 0) FROM billing_ledger_entry)::bigint,
       (SELECT COUNT(*) FROM billing_receipt),
       (SELECT COUNT(*) FROM billing_receipt receipt WHERE match_class = 'engine_only')
"""
_STATUSES = "SELECT status || ' ' || error_code, COUNT(*) FROM billing_usage_record GROUP BY 1 ORDER BY 2 DESC"


def books() -> dict[str, Any]:
    """After everything has settled. Months that calls fell into are invoiced as if they were over."""
    now = timezone.now()
    with connection.cursor() as rows:
        rows.execute("SELECT DISTINCT to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM') FROM billing_usage_record")
        periods = sorted(row[0] for row in rows.fetchall())
        failed = []
        for period in periods:
            failed += run_month(period, now=now + timedelta(days=40)).failed
        rows.execute(_SUMS)
        row = rows.fetchone()
        rows.execute("SELECT COALESCE(SUM(usage_nano), 0)::bigint FROM billing_invoice WHERE status <> 'void'")
        invoiced_nano = rows.fetchone()[0]
        rows.execute(_STATUSES)
        statuses = dict(rows.fetchall())
    rates = match_rates(now - timedelta(days=2), now + timedelta(days=1))
    names = ("total", "equal", "differ", "unfinished", "engine_only", "gateway_only", "pending", "unsettled")
    rollups.take_pending(now=now)
    days = {(now - timedelta(days=1)).date(), now.date()}
    return {
        "records": row[0],
        # Downward corrections are credit, not negative revenue: both sides of the equation say so.
        "records_nano": row[1] + row[2],
        "adjustments": row[3],
        "ledger_nano": row[4] + row[5],
        "ledger_rest_nano": row[6],
        "receipts": row[7],
        "engine_only": row[8],
        "invoiced_nano": invoiced_nano,
        "invoices_failed": [str(entry) for entry in failed],
        "differences": [str(difference) for difference in audit.compare()],
        "rollup_differences": sum(len(rollups.compare_day(_midnight(day), now=now)) for day in days),
        "rates": {name: sum(getattr(rate, name) for rate in rates) for name in names},
        "by_tenant": [
            [rate.organization_id, str(rate.day), *(getattr(rate, name) for name in names)] for rate in rates
        ],
        "statuses": statuses,
        **_left(),
    }


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


COMMANDS = {"tenants": tenants, "unpulled": unpulled, "books": books}

if __name__ == "__main__":
    json.dump(COMMANDS[sys.argv[1]](), sys.stdout)

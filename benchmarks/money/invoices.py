"""The run of a month over many accounts: killed half-way, taken up again, with one customer that cannot be billed."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

PERIOD = "2026-05"
RECORDS_PER_ACCOUNT = 4


def rss_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass
class Watch:
    """Listens to a run: memory and time at each report, and the position where another process could go on."""

    path: Path
    memory_kib: list[int] = field(default_factory=list)
    seen_s: list[tuple[float, int]] = field(default_factory=list)
    position: int = 0

    def __call__(self, summary: Any, position: int, _outcomes: Any) -> None:
        self.position = position
        self.memory_kib.append(rss_kib())
        self.seen_s.append((time.perf_counter(), summary.done))
        # At once, or a kill in between would leave an empty file.
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(str(position))
        unfinished.replace(self.path)


def make_accounts(bench: Any, count: int) -> list[int]:
    """Postpaid accounts, many in a statement: opening them one by one is not what is measured here."""
    from billing.accounts.models import BillingAccount
    from billing.ledger.models import OrganizationBalance
    from billing.ledger.posting import open_ledger_accounts
    from portal.models import Organization

    made = Organization.objects.bulk_create(
        [Organization(name="Bench", slug=uuid.uuid4().hex) for _ in range(count)], batch_size=1000
    )
    ids = [organization.pk for organization in made]
    for start in range(0, count, 1000):
        part = ids[start : start + 1000]
        BillingAccount.objects.bulk_create(
            [BillingAccount(organization_id=pk, email="bench@example.com", credit_limit_nano=10**15) for pk in part]
        )
        OrganizationBalance.objects.bulk_create([OrganizationBalance(organization_id=pk) for pk in part])
    # With the first one's, the house's.
    open_ledger_accounts(ids[0], "USD")
    with bench.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_ledger_account (kind, organization_id, currency)"
            " SELECT kind, id, 'USD' FROM unnest(%s::bigint[]) id, unnest(ARRAY['credit', 'receivable']) kind"
            " ON CONFLICT DO NOTHING",
            [ids],
        )
        cursor.execute("ANALYZE")
    return ids


def fill(bench: Any, accounts: int, started: datetime) -> None:
    """Accounts with a few records each; of one, a record that the ledger does not know."""
    from billing.usage.models import UsageRecord
    from billing.usage.services import finish_records, open_records

    price_id = bench.make_price("invoiced")
    ids = make_accounts(bench, accounts)
    rows = [bench._opening(organization_id, price_id) for organization_id in ids for _ in range(RECORDS_PER_ACCOUNT)]
    for start in range(0, len(rows), 500):
        open_records(rows[start : start + 500])
        finish_records([bench._ending(row.request_id) for row in rows[start : start + 500]])
    broken = bench._opening(ids[len(ids) // 2], price_id)
    open_records([broken])
    UsageRecord.objects.filter(request_id=broken.request_id).update(
        status="completed", finished_at=started + timedelta(seconds=1), output_cost_nano=5
    )


def run_until_killed(bench: Any, watch: Watch, now: datetime, share: float, accounts: int) -> int:
    """A process of its own works on the month and is killed with SIGKILL; returns where it was."""
    from billing.invoices.models import Invoice
    from billing.invoices.runs import run_month

    bench.connection.close()
    child = os.fork()
    if child == 0:
        run_month(PERIOD, now=now, report=watch)
        os._exit(0)
    while Invoice.objects.filter(period=PERIOD).count() < share * accounts:
        time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # A run that is killed before its first report begins anew.
    return int(watch.path.read_text()) if watch.path.exists() else 0


def table(bench: Any, accounts: int, started: datetime) -> list[str]:
    from django.db.models import Count

    from billing.invoices.models import Invoice
    from billing.invoices.runs import run_month

    fill(bench, accounts, started)
    now = started + timedelta(days=30)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder) / "position")
        position = run_until_killed(bench, watch, now, 0.3, accounts)
        before = Invoice.objects.filter(period=PERIOD).count()
        wall, cpu = time.perf_counter(), time.process_time()
        summary = run_month(PERIOD, now=now, after=position, report=watch)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    issued = Invoice.objects.filter(period=PERIOD, status="final")
    doubled = issued.values("organization_id").annotate(count=Count("id")).filter(count__gt=1).count()
    numbers = sorted(int(number.rpartition("-")[2]) for number in issued.values_list("number", flat=True))
    gaps = numbers[-1] - numbers[0] + 1 - len(numbers)
    settled = watch.memory_kib[len(watch.memory_kib) // 10]
    return [
        f"The run of a month over {accounts:,} accounts with {RECORDS_PER_ACCOUNT} calls each. A process was killed by"
        f" SIGKILL after {before:,} invoices; another went on behind the last account that it had reported:"
        f" {summary.finalized:,} invoices in {wall:.0f} s, {summary.finalized / wall:.0f} a second,"
        f" {1000 * cpu / max(1, summary.finalized):.1f} ms of client CPU each,"
        f" {summary.already_final} passed over again.",
        "",
        f"In the end {issued.count():,} invoices, {doubled} organizations with two, {gaps} gaps in the numbers,"
        f" {summary.failed_count} customer who could not be billed and stopped nobody. Memory of the process: "
        f"{settled / 1024:.1f} MiB after a tenth of the run, {watch.memory_kib[-1] / 1024:.1f} MiB at its end.",
    ]

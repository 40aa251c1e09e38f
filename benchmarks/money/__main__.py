"""Records opened and finished per second, by batch size, and the monthly run.

Works in a database of its own beside the one that DATABASE_URL names, made and dropped here. CPU is user + system time
of this process and of its PostgreSQL backend. Prints the tables of docs/benchmarks/money.md; with --write, writes them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks.money import invoices

DATABASE = "benchmark_money"
REPORT = Path("docs/benchmarks/money.md")
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A month that is over, so that it can be invoiced.
STARTED = datetime(2026, 5, 15, 12, tzinfo=UTC)


def use_own_database() -> str:
    """Point DATABASE_URL at a fresh database; returns the address of the server's first one."""
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {DATABASE}")
    os.environ["DATABASE_URL"] = urlunsplit(urlsplit(url)._replace(path=f"/{DATABASE}"))
    os.environ["LOG_LEVEL"] = "ERROR"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings_test")
    return url


def backend_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@dataclass(frozen=True)
class Rate:
    records: int
    wall_s: float
    client_cpu_s: float


class Bench:
    """Imports of the product stand inside: Django must be set up first."""

    def __init__(self) -> None:
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        self.connection = connection
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_backend_pid(), version(), current_setting('fsync'), current_setting('synchronous_commit')"
            )
            self.pid, self.version, self.fsync, self.synchronous = cursor.fetchone()

    def make_accounts(self, count: int) -> list[int]:
        from billing.accounts.services import change_credit_limit, open_account
        from billing.ledger.services import grant_credit
        from portal.models import Organization

        ids = []
        for _ in range(count):
            organization = Organization.objects.create(name="Bench", slug=uuid.uuid4().hex)
            open_account(organization_id=organization.id, email="bench@example.com")
            change_credit_limit(organization_id=organization.id, credit_limit_nano=10**15)
            grant_credit(organization_id=organization.id, amount_nano=10**15, reason="benchmark", key=uuid.uuid4().hex)
            ids.append(organization.id)
        return ids

    def make_price(self, model: str) -> int:
        from billing.pricing.services import set_price

        return set_price(
            model=model,
            input_nano=400_000_000,
            cached_input_nano=100_000_000,
            output_nano=2_030_000_000,
            effective_from=STARTED - timedelta(days=1),
            actor_id=None,
        ).id

    def measure(self, batch: int, organization_ids: list[int], price_id: int, seconds: float) -> tuple[Rate, Rate]:
        """Open a batch, finish it, and so on for `seconds`; the two acts are counted apart."""
        from billing.usage.services import finish_records, open_records

        spent = {act: [0.0, 0.0] for act in ("open", "finish")}
        records = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            opened = [self._opening(organization_ids[i % len(organization_ids)], price_id) for i in range(batch)]
            finished = [self._ending(row.request_id) for row in opened]
            for act, work, rows in (("open", open_records, opened), ("finish", finish_records, finished)):
                before = time.perf_counter(), time.process_time()
                work(rows)
                spent[act][0] += time.perf_counter() - before[0]
                spent[act][1] += time.process_time() - before[1]
            records += batch
        return Rate(records, *spent["open"]), Rate(records, *spent["finish"])

    def backend_cpu(self, act: str, batch: int, organization_ids: list[int], price_id: int, count: int) -> float:
        """Backend CPU seconds per record of one act alone: kernel ticks are too coarse for single batches."""
        from billing.usage.services import finish_records, open_records

        batches = [
            [self._opening(organization_ids[i % len(organization_ids)], price_id) for i in range(batch)]
            for _ in range(max(1, count // batch))
        ]
        if act == "finish":
            for opened in batches:
                open_records(opened)
        before = backend_cpu_s(self.pid)
        for opened in batches:
            if act == "open":
                open_records(opened)
            else:
                finish_records([self._ending(row.request_id) for row in opened])
        return (backend_cpu_s(self.pid) - before) / (batch * len(batches))

    @staticmethod
    def _opening(organization_id: int, price_id: int):
        from billing.usage.request_ids import new_request_id
        from billing.usage.services import OpenRecord

        return OpenRecord(
            new_request_id(), organization_id, 1, 1, "bench", price_id, 1, "chat", True, 10**6, STARTED, "gateway-1"
        )

    @staticmethod
    def _ending(request_id: uuid.UUID):
        from billing.usage.services import FinishedRecord

        return FinishedRecord(
            request_id, "completed", 1000, 900, 100, 0, "stop", "", 12.5, 250.0, STARTED + timedelta(seconds=1)
        )

    def triggers(self, *, enabled: bool) -> None:
        word = "ENABLE" if enabled else "DISABLE"
        with self.connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE billing_ledger_entry {word} TRIGGER billing_balanced")


def usage_table(bench: Bench, seconds: float, rounds: int) -> list[str]:
    price_id = bench.make_price("bench")
    groups = {1: bench.make_accounts(1), 50: bench.make_accounts(50)}
    results: dict[tuple[int, int], list[tuple[Rate, Rate]]] = {}
    for _ in range(rounds):
        for organizations, ids in groups.items():
            for batch in (1, 32, 256):
                results.setdefault((batch, organizations), []).append(bench.measure(batch, ids, price_id, seconds))
    lines = [
        "| batch | organizations | opened/s | finished/s | both/s | client CPU us a record: open + finish"
        " | PostgreSQL CPU | both/s a core |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (batch, organizations), pairs in sorted(results.items()):
        opened, finished = (statistics.median(pair[i].records / pair[i].wall_s for pair in pairs) for i in (0, 1))
        both = statistics.median(pair[0].records / (pair[0].wall_s + pair[1].wall_s) for pair in pairs)
        client = [statistics.median(1e6 * pair[i].client_cpu_s / pair[i].records for pair in pairs) for i in (0, 1)]
        count = 300 if batch == 1 else 4096
        server = [
            1e6 * bench.backend_cpu(act, batch, groups[organizations], price_id, count) for act in ("open", "finish")
        ]
        lines.append(
            f"| {batch} | {organizations} | {opened:,.0f} | {finished:,.0f} | {both:,.0f}"
            f" | {client[0]:,.0f} + {client[1]:,.0f} | {server[0]:,.0f} + {server[1]:,.0f}"
            f" | {1e6 / (sum(client) + sum(server)):,.0f} |"
        )
    check_us = balance_check_us(bench, groups[50], price_id)
    lines += ["", f"The balance check at the commit costs {check_us:,.0f} us of these a record."]
    lines += ["", *month_lines(bench, groups[50], price_id)]
    return lines


def month_lines(bench: Bench, organization_ids: list[int], price_id: int) -> list[str]:
    """What more months of the records' table cost, and whether the client grows with what it has written."""
    from billing.usage.partitions import make_partitions, partition_sizes

    def cost_us() -> float:
        acts = ("open", "finish")
        return 1e6 * sum(bench.backend_cpu(act, 256, organization_ids, price_id, 8192) for act in acts)

    few, before_us, before_kib = len(partition_sizes()), cost_us(), resident_kib()
    make_partitions(now=datetime.now(UTC) + timedelta(days=60), months_ahead=36)
    after_us, after_kib = cost_us(), resident_kib()
    return [
        f"With {few} partitions a record costs PostgreSQL {before_us:,.0f} us in batches of 256, with"
        f" {len(partition_sizes())} {after_us:,.0f} us. The client's memory grew by"
        f" {(after_kib - before_kib) / 1024:.1f} MiB"
        " over 16,384 records between the two measurements."
    ]


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def balance_check_us(bench: Bench, organization_ids: list[int], price_id: int) -> float:
    """Median of five pairs that took turns, with the trigger and without."""
    with bench.connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    differences = []
    for _ in range(5):
        cost = {}
        for enabled in (True, False):
            bench.triggers(enabled=enabled)
            cost[enabled] = bench.backend_cpu("finish", 256, organization_ids, price_id, 4096)
        differences.append(1e6 * (cost[True] - cost[False]))
    bench.triggers(enabled=True)
    return statistics.median(differences)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.money", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="Length of one measurement.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accounts", type=int, default=10_000, help="Accounts in the monthly run.")
    parser.add_argument("--write", action="store_true", help=f"Put the figures into {REPORT}.")
    options = parser.parse_args()
    server = use_own_database()
    bench = Bench()
    try:
        lines = usage_table(bench, options.seconds, options.rounds)
        lines += ["", *invoices.table(bench, options.accounts, STARTED)]
        lines += [
            "",
            f"{bench.version.split(' on ')[0]} on the same machine, fsync {bench.fsync}, synchronous_commit"
            f" {bench.synchronous}; Python {platform.python_version()}, one connection, {os.cpu_count()} virtual cores,"
            f" load average {os.getloadavg()[0]:.1f}. Medians of {options.rounds} rounds of {options.seconds:g} s.",
        ]
    finally:
        bench.connection.close()
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    print("\n".join(lines))
    if options.write:
        head, _, rest = REPORT.read_text().partition(BEGIN)
        REPORT.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

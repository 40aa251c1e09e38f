"""The pages, how each is asked, and the report. Django is set up before this is imported."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection
from django.test import Client

from billing.usage.models import UsageRecord
from billing.usage.selectors import usage_page
from portal.api_keys.models import ApiKey
from portal.organizations.models import Member, Organization
from portal.users.models import User

GOAL_MS = 200.0
LARGEST = "seed-00001"
BACKEND = "django.contrib.auth.backends.ModelBackend"


@dataclass(frozen=True)
class Page:
    name: str
    path: str
    is_operator: bool = False


PAGES = [
    Page("home", "/o/{slug}/"),
    Page("API keys", "/o/{slug}/keys"),
    Page("API keys, search", "/o/{slug}/keys?q=key+1234"),
    Page("usage, 24 hours", "/o/{slug}/usage?days=1"),
    Page("usage, 30 days by model", "/o/{slug}/usage?days=30"),
    Page("usage, 30 days by API key", "/o/{slug}/usage?days=30&group=api_key"),
    Page("usage, 90 days by end user", "/o/{slug}/usage?days=90&group=end_user"),
    Page("chart, 24 hours", "/o/{slug}/usage/chart.json?days=1"),
    Page("chart, 90 days", "/o/{slug}/usage/chart.json?days=90"),
    Page("chart, 90 days in Kathmandu", "/o/{slug}/usage/chart.json?days=90#Asia/Kathmandu"),
    Page("requests", "/o/{slug}/usage/requests"),
    Page("requests, a later page", "/o/{slug}/usage/requests?after={after}"),
    Page("requests of one key", "/o/{slug}/usage/requests?api_key={key}"),
    Page("requests that failed", "/o/{slug}/usage/requests?status=failed"),
    Page("request", "/o/{slug}/usage/requests/{request}"),
    Page("billing", "/o/{slug}/billing"),
    Page("ledger", "/o/{slug}/billing/ledger"),
    Page("limits", "/o/{slug}/limits"),
    Page("members", "/o/{slug}/members"),
    Page("audit log", "/o/{slug}/audit"),
    Page("catalog", "/o/{slug}/models"),
    Page("operator overview", "/operator/", is_operator=True),
    Page("organizations", "/operator/organizations", is_operator=True),
    Page("organizations, search", "/operator/organizations?q=00777", is_operator=True),
    Page("organizations, last page", "/operator/organizations?page=200", is_operator=True),
    Page("an organization", "/operator/organizations/{slug}", is_operator=True),
    Page("operations", "/operator/operations", is_operator=True),
    Page("operations data, 15 min", "/operator/operations/data.json?range=15m", is_operator=True),
    Page("operations data, 24 h", "/operator/operations/data.json?range=24h", is_operator=True),
    Page("operations data, 30 d", "/operator/operations/data.json?range=30d", is_operator=True),
    Page(
        "operations data, 30 d by organization",
        "/operator/operations/data.json?range=30d&group=organization",
        is_operator=True,
    ),
    Page(
        "operations data, 24 h by organization",
        "/operator/operations/data.json?range=24h&group=organization",
        is_operator=True,
    ),
    Page(
        "operations data, 30 d of the largest",
        "/operator/operations/data.json?range=30d&organization={slug}",
        is_operator=True,
    ),
    Page("capacity", "/operator/capacity", is_operator=True),
    Page("models and prices", "/operator/models", is_operator=True),
    Page("engines", "/operator/engines", is_operator=True),
    Page("invoice run", "/operator/invoices", is_operator=True),
    Page("reconciliation", "/operator/reconciliation", is_operator=True),
]


class Processors:
    """Milliseconds of processor time that this process and its PostgreSQL backend have used: what a page costs on a
    machine of its own, whatever else runs here. Without a backend on this machine, the clock."""

    def __init__(self) -> None:
        with connection.cursor() as cursor:
            # A parallel worker's time would be nobody's.
            cursor.execute("SET max_parallel_workers_per_gather = 0")
            cursor.execute("SELECT pg_backend_pid()")
            self._backend = Path(f"/proc/{cursor.fetchone()[0]}/schedstat")
        self.is_known = self._backend.exists()

    def read_ms(self) -> float:
        if not self.is_known:
            return time.perf_counter() * 1000
        backend_ns = int(self._backend.read_text().split()[0])
        return time.process_time() * 1000 + backend_ns / 1e6


@dataclass
class Timing:
    page: Page
    milliseconds: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    queries: int = 0
    database_ms: float = 0.0
    bytes: int = 0
    slowest: tuple[float, str, Any] = (0.0, "", None)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def cost_ms(self) -> float:
        return statistics.median(self.processor_ms)


@contextmanager
def watched(timing: Timing) -> Iterator[None]:
    """Counts the statements, and keeps the slowest."""
    timing.queries, timing.database_ms = 0, 0.0

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            took = (time.perf_counter() - began) * 1000
            timing.queries += 1
            timing.database_ms += took
            timing.slowest = max(timing.slowest, (took, sql, params), key=lambda found: found[0])

    with connection.execute_wrapper(watch):
        yield


def measure(page: Page, browser: Client, names: dict[str, object], repeats: int, processors: Processors) -> Timing:
    path, _, zone = page.path.format(**names).partition("#")
    if zone:
        browser.cookies["time_zone"] = zone
    timing = Timing(page)
    try:
        for number in range(repeats + 1):
            with watched(timing):
                began, used = time.perf_counter(), processors.read_ms()
                answer = browser.get(path)
                took, cost = (time.perf_counter() - began) * 1000, processors.read_ms() - used
            if answer.status_code != 200:
                raise SystemExit(f"{page.name}: {path} answered {answer.status_code}")
            if number:
                timing.milliseconds.append(took)
                timing.processor_ms.append(cost)
        timing.bytes = len(answer.content)
    finally:
        if zone:
            del browser.cookies["time_zone"]
    return timing


def signed_in(user: User) -> Client:
    browser = Client(SERVER_NAME="localhost")
    browser.force_login(user, backend=BACKEND)
    return browser


def names() -> dict[str, object]:
    """What the paths are filled with: the largest organization, a busy key of it, a request, a page marker."""
    organization = Organization.objects.get(slug=LARGEST)
    records = UsageRecord.objects.filter(organization=organization).order_by("-started_at", "-request_id")
    record = records[0]
    after = usage_page(organization.id).next
    return {"slug": LARGEST, "key": record.api_key_id, "request": record.request_id, "after": after}


def owner() -> User:
    return Member.objects.select_related("user").get(organization__slug=LARGEST).user


def operator() -> User:
    user, _ = User.objects.get_or_create(email="benchmark@example.com", defaults={"is_staff": True})
    return user


def explained(timing: Timing) -> str:
    _, sql, params = timing.slowest
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {sql}", params)
        return "\n".join(row[0] for row in cursor.fetchall())


def report(timings: list[Timing], repeats: int) -> str:
    counts = {
        "organizations": Organization.objects.count(),
        "API keys": ApiKey.objects.count(),
        "usage records": UsageRecord.objects.count(),
    }
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version'), pg_size_pretty(pg_database_size(current_database()))")
        version, size = cursor.fetchone()
    slow = [timing for timing in timings if timing.cost_ms > GOAL_MS]
    lines = [
        "# Pages on a large database",
        "",
        "What the server takes for each list and chart, made by `python -m benchmarks.pages` on a database from",
        f"`manage.py seed_scale`: {', '.join(f'{count:,} {name}' for name, count in counts.items())};",
        f"PostgreSQL {version}, {size}, {os.cpu_count()} cores. The member's pages are those of the largest",
        "organization, which has a tenth of the keys and records.",
        "",
        f"Medians of {repeats} answers after a first one, whole page, in process. *Processor* is the time that the",
        "web process and its PostgreSQL backend ran, without parallel workers: what a page takes on its own machine.",
        f"*Clock* includes waiting for whatever else ran: the load average was {os.getloadavg()[1]:.0f}. The goal is",
        f"{GOAL_MS:.0f} ms of processor.",
        "",
        f"**{len(timings) - len(slow)} of {len(timings)} pages are within the goal.**"
        + (f" Above it: {', '.join(timing.page.name for timing in slow)}." if slow else ""),
        "",
        "| page | processor ms | clock ms | queries | kB |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {timing.page.name} | {timing.cost_ms:.0f} | {timing.median_ms:.0f} | {timing.queries} |"
        f" {timing.bytes / 1000:.0f} |"
        for timing in timings
    ]
    return "\n".join(lines) + "\n"

"""How each page is asked, and the report. Django is set up before this is imported."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib import admin
from django.db import connection
from django.db.models import Max, Min
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from benchmarks.pages.pages import Page
from billing.invoices.models import Invoice
from billing.reconciliation.models import Receipt
from billing.usage.models import UsageRecord
from billing.usage.selectors import leaders, usage_page
from portal.alerts.models import WebhookDelivery
from portal.api_keys.models import ApiKey
from portal.catalog.models import Model
from portal.limit_templates.models import LimitTemplate, TemplateLimit, TemplateUse, TemplateVersion
from portal.operator.models import InvoiceRun, RunOutcome
from portal.organizations.models import Member, Organization
from portal.users.models import User

GOAL_MS = 200.0
PLANS_SHOWN, PLAN_LINES = 5, 25
LARGEST = "seed-00001"
BACKEND = "django.contrib.auth.backends.ModelBackend"


def admin_lists() -> list[Page]:
    """The support admin's list of each table that it shows."""
    shown = [model._meta for model in admin.site._registry if model._meta.app_label in ("portal", "billing", "api")]
    return [
        Page(
            f"admin, {meta.verbose_name_plural}", reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist"), True
        )
        for meta in sorted(shown, key=lambda meta: meta.label)
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
    """What the paths are filled with: the largest organization, its busiest key, a request, a page marker…"""
    organization = Organization.objects.get(slug=LARGEST)
    records = UsageRecord.objects.filter(organization=organization).order_by("-started_at", "-request_id")
    record = records[0]
    after = usage_page(organization.id).next
    invoice = Invoice.objects.filter(organization=organization)[0]
    now = timezone.now()

    def busiest(group: str) -> str:
        keys = leaders(organization.id, now - timedelta(days=30), now, group, limit=2).keys
        return next(key for key in keys if key)

    return {
        "slug": LARGEST,
        "key": busiest("api_key"),
        "project": busiest("project"),
        "end_user": busiest("end_user"),
        "request": record.request_id,
        "after": after,
        "invoice": invoice.id,
        "period": invoice.period,
        "run": run_of(invoice.period).id,
        "template": template_of_all().id,
        "since": f"{record.started_at - timedelta(days=30):%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{record.started_at:%Y-%m-%dT%H:%M:%SZ}",
        "delivery": WebhookDelivery.objects.filter(organization=organization).latest("id").id,
        "model": Model.objects.get(name=record.model).id,
        "model_name": record.model,
    }


def owner() -> User:
    return Member.objects.select_related("user").get(organization__slug=LARGEST, role="owner").user


def operator() -> User:
    may = {"is_staff": True, "is_superuser": True}
    user, _ = User.objects.get_or_create(email="benchmark@example.com", defaults=may)
    return user


def run_of(period: str) -> InvoiceRun:
    """The month's run, with an outcome of each account; made once."""
    run, is_new = InvoiceRun.objects.get_or_create(
        period=period, is_preview=False, defaults={"state": "finished", "started_by": operator()}
    )
    if is_new:
        issued = dict(Invoice.objects.filter(period=period).values_list("organization_id", "id"))
        RunOutcome.objects.bulk_create(
            RunOutcome(
                run=run,
                organization_id=number,
                outcome="finalized" if number in issued else "empty",
                invoice_id=issued.get(number),
            )
            for number in Organization.objects.values_list("id", flat=True)
        )
        run.account_total = Organization.objects.count()
        run.outcome = {"finalized": len(issued), "empty": run.account_total - len(issued)}
        run.save(update_fields=["account_total", "outcome"])
    return run


def template_of_all() -> LimitTemplate:
    """A limit template that every organization has, a third of them in an older version; made once."""
    template, is_new = LimitTemplate.objects.get_or_create(name="Benchmark")
    if is_new:
        older, newest = (
            TemplateVersion.objects.create(template=template, number=number, created_by=operator()) for number in (1, 2)
        )
        TemplateLimit.objects.create(version=newest, kind="requests", window="minute", limit=600)
        TemplateLimit.objects.create(version=newest, kind="tokens", window="day", limit=10**7)
        TemplateUse.objects.bulk_create(
            TemplateUse(organization_id=number, version=newest if number % 3 else older)
            for number in Organization.objects.values_list("id", flat=True)
        )
    return template


def explained(timing: Timing, lines: int = PLAN_LINES) -> str:
    """The plan of the page's slowest statement, without what was never executed."""
    took, sql, params = timing.slowest
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, SUMMARY OFF) {sql}", params)
        plan = [row[0] for row in cursor.fetchall()]
    ran = [line[:160] for line in plan if "never executed" not in line and "(actual" in line]
    return "\n".join([f"{timing.page.name}: {took:.0f} ms by the clock", *ran[:lines]])


def report(timings: list[Timing], repeats: int) -> str:
    counts = {
        "organizations": Organization.objects.count(),
        "API keys": ApiKey.objects.count(),
        "usage records": UsageRecord.objects.count(),
        "receipts": Receipt.objects.count(),
        "invoices": Invoice.objects.count(),
        "deliveries of webhooks": WebhookDelivery.objects.count(),
    }
    days = UsageRecord.objects.aggregate(days=Max("started_at") - Min("started_at"))["days"].days
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version'), pg_size_pretty(pg_database_size(current_database())),"
            " current_setting('shared_buffers')"
        )
        version, size, buffers = cursor.fetchone()
    slow = [timing for timing in timings if timing.cost_ms > GOAL_MS]
    slow_by_clock = [timing for timing in timings if timing.median_ms > GOAL_MS]
    slowest = sorted(timings, key=lambda timing: -timing.cost_ms)[:PLANS_SHOWN]
    lines = [
        "# Pages on a large database",
        "",
        f"What the server takes for each list and chart, made on {timezone.now():%Y-%m-%d} by",
        "`python -m benchmarks.pages` on a database from `manage.py seed_scale`:",
        f"{', '.join(f'{count:,} {name}' for name, count in counts.items())}, over {days} days;",
        f"PostgreSQL {version} with shared_buffers of {buffers}, {size}, {os.cpu_count()} cores ({_processor()}). The",
        "member's pages are those of the largest organization, which has a tenth of the keys and records.",
        "",
        f"{f'Medians of {repeats} answers' if repeats > 1 else 'One answer'} after a first one, whole page, in process."
        " *Processor* is the time that the",
        "web process and its PostgreSQL backend ran, without parallel workers: what a page takes on its own machine.",
        f"*Clock* includes waiting for whatever else ran: the load average was {os.getloadavg()[1]:.0f}. The goal is",
        f"{GOAL_MS:.0f} ms of processor.",
        "",
        f"**{len(timings) - len(slow)} of {len(timings)} pages are within the goal.**"
        + (f" Above it: {', '.join(timing.page.name for timing in slow)}." if slow else "")
        + f" By the clock it was {len(timings) - len(slow_by_clock)}.",
        "",
        "| page | processor ms | clock ms | queries | kB |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {timing.page.name} | {timing.cost_ms:.0f} | {timing.median_ms:.0f} | {timing.queries} |"
        f" {timing.bytes / 1000:.0f} |"
        for timing in timings
    ]
    lines += ["", "## Plans", "", f"Of the slowest statement of the {PLANS_SHOWN} slowest pages, shortened.", ""]
    for timing in slowest:
        lines += ["```text", explained(timing), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _processor() -> str:
    """As Linux names it; of other systems, the machine's kind."""
    about = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", about.read_text(), re.MULTILINE) if about.exists() else []
    return names[0] if names else platform.machine()

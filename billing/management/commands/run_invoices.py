"""`manage.py run_invoices --period YYYY-MM [--preview]`: the monthly run, by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.errors import InvalidPeriod
from billing.invoices.runs import run_due, run_month


class Command(BaseCommand):
    help = "Draft and finalize the month's invoices of all accounts. Safe to repeat: one invoice per account and month."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--period", help="YYYY-MM; without it, each account's last month once it is due.")
        parser.add_argument("--preview", action="store_true", help="Only draft, also a month that is not over.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["preview"] and not options["period"]:
            raise CommandError("--preview needs --period YYYY-MM.")
        try:
            summary = run_month(options["period"], options["preview"]) if options["period"] else run_due()
        except InvalidPeriod as error:
            raise CommandError(str(error)) from error
        for name in ("drafted", "finalized", "already_final", "empty", "still_open", "waiting", "unclosed"):
            self.stdout.write(f"{name.replace('_', ' ')}: {getattr(summary, name)}")
        if summary.waiting:
            self.stderr.write("Drafts wait until their month is closed in reconciliation.")
        if summary.unclosed:
            self.stderr.write("Invoices were issued although their month is not closed in reconciliation.")
        for organization_id, reason in summary.failed:
            self.stderr.write(f"organization {organization_id}: {reason}")
        if summary.failed_count:
            raise CommandError(f"{summary.failed_count} accounts failed; the others are done. Run it again for these.")

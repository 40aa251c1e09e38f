"""`manage.py retire_usage [--months N] [--yes]`: old months of usage records, what keeps them, and their removal."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.errors import RetentionRefused
from billing.money import to_decimal
from billing.usage.retention import old_partitions, retire


class Command(BaseCommand):
    help = "Show the months of usage records past their time, and with --yes remove those that nothing keeps."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--months", type=int, help="Instead of USAGE_RETENTION_MONTHS.")
        parser.add_argument("--yes", action="store_true", help="Remove them. It cannot be undone.")

    def handle(self, *args: Any, **options: Any) -> None:
        months = settings.USAGE_RETENTION_MONTHS if options["months"] is None else options["months"]
        if months < 1:
            raise CommandError("Usage records are kept for ever: set USAGE_RETENTION_MONTHS, or name --months.")
        now = timezone.now()
        found = old_partitions(now=now, months=months)
        refused = 0
        for partition in found:
            periods = ", ".join(month.period for month in partition.months) or "empty"
            self.stdout.write(
                f"{partition.name} ({periods}): {partition.records:,} records,"
                f" {to_decimal(partition.cost_nano):f}, {partition.size_bytes:,} bytes"
            )
            for blocker in partition.blockers:
                self.stdout.write(f"  stays: {blocker}")
            if options["yes"] and not partition.blockers:
                try:
                    retire(partition, actor_name="manage.py retire_usage", now=now)
                except RetentionRefused as error:
                    refused += 1
                    self.stderr.write(f"  {error}")
                else:
                    self.stdout.write("  removed")
        if not found:
            self.stdout.write(f"No month of usage records ended {months} months ago or earlier.")
        if refused:
            raise CommandError(f"{refused} partitions could not be removed; the others are done.")

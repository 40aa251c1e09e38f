"""`manage.py rebuild_rollups [--compare] [--start YYYY-MM-DD] [--end YYYY-MM-DD]`: rollups against the records."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.rollups import services
from billing.rollups.selectors import first_use
from billing.usage.partitions import retired_in

# Made again in one transaction, for which the taking of what is pending waits.
DAYS_AT_ONCE = 10


class Command(BaseCommand):
    help = "Make the rollups again from the usage records; with --compare, only report what differs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--compare", action="store_true", help="Change nothing; exit with 1 on any difference.")
        parser.add_argument("--start", type=date.fromisoformat, help="First UTC day; the first record's if not given.")
        parser.add_argument("--end", type=date.fromisoformat, help="The UTC day after the last; tomorrow if not given.")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        oldest = first_use()
        if oldest is None:
            self.stdout.write("There are no usage records.")
            return
        first = options["start"] or oldest.astimezone(UTC).date()
        end = options["end"] or now.astimezone(UTC).date() + timedelta(days=1)
        if end <= first:
            raise CommandError(f"--end {end} is not after --start {first}; name the day after the last one.")
        days = [
            datetime(first.year, first.month, first.day, tzinfo=UTC) + timedelta(n) for n in range((end - first).days)
        ]
        differences = 0
        for is_retired, run in groupby(days, key=lambda day: retired_in(day, day + timedelta(days=1)) is not None):
            left = list(run)
            while left:
                some, left = left[:DAYS_AT_ONCE], left[DAYS_AT_ONCE:]
                span = f"{some[0]:%Y-%m-%d}" + (f" to {some[-1]:%Y-%m-%d}" if len(some) > 1 else "")
                if is_retired:
                    self.stdout.write(f"{span}: the records are gone; the rollups stay as they are")
                elif options["compare"]:
                    differences += sum(self._compare(day, now) for day in some)
                else:
                    count = services.rebuild_days(some[0], some[-1] + timedelta(days=1), now=now)
                    self.stdout.write(f"{span}: {count:,} records and corrections")
        if differences:
            raise CommandError(f"{differences} buckets differ; rebuild_rollups without --compare makes them again.")
        if options["compare"]:
            self.stdout.write(f"The rollups of {(end - first).days} days agree with the records.")

    def _compare(self, day: datetime, now: datetime) -> int:
        found = services.compare_day(day, now=now)
        for row in found:
            self.stdout.write(f"{row.table} {row.key}: kept {row.kept}, records say {row.expected}")
        return len(found)

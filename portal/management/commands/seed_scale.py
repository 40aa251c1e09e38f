"""`manage.py seed_scale`: a database as a large service has it, for `python -m benchmarks.pages`. Not for real ones."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import ProgrammingError
from django.utils import timezone
from psycopg.errors import InsufficientPrivilege

from portal.operations.seeding import AlreadySeeded, Size, seed


class Command(BaseCommand):
    help = (
        "Seed organizations, API keys, usage, receipts and invoices with balanced books; see docs/benchmarks/pages.md."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--organizations", type=int, default=10_000)
        parser.add_argument("--keys", type=int, default=500_000)
        parser.add_argument("--records", type=int, default=10_000_000)
        parser.add_argument("--days", type=int, default=100, help="The records are spread over so many days until now.")

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("organizations", "keys", "records", "days")
        if any(options[name] < 1 for name in names) or options["keys"] < options["organizations"]:
            raise CommandError("Every number must be at least 1, and --keys at least --organizations.")
        numbers = {name: int(options[name]) for name in names}
        size = Size(**numbers, end=timezone.now().replace(microsecond=0))
        began = time.monotonic()
        try:
            seed(size, say=lambda text: self.stdout.write(f"{time.monotonic() - began:6.0f} s  {text}"))
        except AlreadySeeded as error:
            raise CommandError(str(error)) from None
        except ProgrammingError as error:
            if not isinstance(error.__cause__, InsufficientPrivilege):
                raise
            raise CommandError(f"Seeding needs a database role that may switch triggers off: {error}") from error

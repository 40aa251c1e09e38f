"""`manage.py rebuild_balances [--compare]`: the projections of the ledger against its entries."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.ledger import audit


class Command(BaseCommand):
    help = "Recompute the balances from the ledger's entries; with --compare, only report what differs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--compare", action="store_true", help="Change nothing; exit with 1 on any difference.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["compare"]:
            audit.rebuild()
        differences = audit.compare()
        for row in differences:
            self.stdout.write(f"{row.what} {row.id}: kept {row.kept}, entries say {row.expected}")
        if differences:
            raise CommandError(f"{len(differences)} differences.")
        self.stdout.write("Balances, transactions and usage records agree with the ledger's entries.")

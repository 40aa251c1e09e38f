"""`manage.py show_payload NUMBER`: the requests that bill an invoice at Stripe, without sending any."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.payments import services
from billing.payments.payloads import API_VERSION


class Command(BaseCommand):
    help = "Print the requests that Stripe gets for an issued invoice; nothing is sent and nothing is changed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", help="The invoice's number, e.g. INV-000042.")

    def handle(self, *args: Any, **options: Any) -> None:
        requests = services.payload_of(options["number"])
        if requests is None:
            raise CommandError(f"There is no invoice {options['number']}.")
        document = {"provider": "stripe", "api_version": API_VERSION, "requests": requests}
        self.stdout.write(json.dumps(document, indent=2, ensure_ascii=False))

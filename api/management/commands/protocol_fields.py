"""Write the lists of accepted-without-effect and refused fields into docs/api/protocols.md, from the schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from api.protocols.field_support import as_markdown

BEGIN, END = "<!-- protocol_fields: begin -->\n", "<!-- protocol_fields: end -->\n"


class Command(BaseCommand):
    help = "Write the generated part of docs/api/protocols.md; with --check, only say whether it is fresh."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="fail when the page is stale, write nothing")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs/api/protocols.md"
        page = path.read_text()
        head, _, rest = page.partition(BEGIN)
        _, mark, tail = rest.partition(END)
        if not mark:
            raise CommandError(f"{path} lacks the lines {BEGIN.strip()} and {END.strip()}.")
        fresh = f"{head}{BEGIN}\n{as_markdown()}\n{END}{tail}"
        if check and fresh != page:
            raise CommandError(f"{path} is stale; run manage.py protocol_fields.")
        path.write_text(fresh)

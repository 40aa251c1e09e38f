"""`python -m config.local.prepare`: database, first operator and static files made ready, in one process."""

from __future__ import annotations

import time

import django
from django.core.management import call_command

STEPS = {"migrate": {"interactive": False}, "bootstrap": {}, "collectstatic": {"interactive": False}}


def main() -> None:
    django.setup()
    for command, options in STEPS.items():
        started_at = time.monotonic()
        call_command(command, verbosity=0, **options)
        print(f"  {command:<14} done ({time.monotonic() - started_at:.1f} s)", flush=True)


if __name__ == "__main__":
    main()

"""Server time and queries of every list and chart, on a large database.

    python -m benchmarks.pages                       # seeds a database of its own, drops it, writes the report
    python -m benchmarks.pages --records 10000000    # the whole size: 25 GB, and a while of seeding
    python -m benchmarks.pages --here                # on the database of DATABASE_URL, which `seed_scale` has filled

Each page is asked in this process, through all middleware and templates, signed in as an owner of the largest
organization (a tenth of all keys and records) or as an operator. The first answer warms caches and is not counted. With
`--plans` the slowest statement of each page over the goal is explained.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

DATABASE = "benchmark_pages"
REPORT = Path("docs/benchmarks/pages.md")


def use_own_database() -> str:
    """Point DATABASE_URL at a fresh database; returns the address of the server's first one."""
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {DATABASE}")
    os.environ["DATABASE_URL"] = urlunsplit(urlsplit(url)._replace(path=f"/{DATABASE}"))
    return url


def fill(records: int) -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    call_command("seed_scale", records=records)


def measure(arguments: argparse.Namespace) -> int:
    from django.conf import settings

    from api.rest.authentication import ManagementThrottle
    from benchmarks.pages import measure as pages
    from benchmarks.pages.pages import PAGES

    settings.ALLOWED_HOSTS = ["localhost"]
    # Five answers of each page are more than a person's minute.
    ManagementThrottle.THROTTLE_RATES = {"management": None}
    browsers = {True: pages.signed_in(pages.operator()), False: pages.signed_in(pages.owner())}
    filled = pages.names()
    processors = pages.Processors()
    timings = []
    for page in [*PAGES, *pages.admin_lists()]:
        if arguments.only not in page.name:
            continue
        timing = pages.measure(page, browsers[page.is_operator], filled, arguments.repeats, processors)
        timings.append(timing)
        times = f"{timing.cost_ms:6.0f} ms of processor {timing.median_ms:6.0f} ms"
        print(f"{page.name:<40} {times} {timing.queries:3} queries")
        if arguments.plans and timing.cost_ms > pages.GOAL_MS:
            print(pages.explained(timing))
    if not arguments.only:
        REPORT.write_text(pages.report(timings, arguments.repeats))
        print(f"written: {REPORT}")
    return int(any(timing.cost_ms > pages.GOAL_MS for timing in timings))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="Measure on the database of DATABASE_URL as it is.")
    parser.add_argument("--records", type=int, default=200_000, help="Usage records to seed.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="Part of a page's name; then no report is written.")
    parser.add_argument("--plans", action="store_true", help="Explain the slowest statement of what is over the goal.")
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    os.environ["LOG_LEVEL"] = "ERROR"
    # With it, Django keeps every statement.
    os.environ["DEBUG"] = "0"
    server = None if arguments.here else use_own_database()
    import django
    from django.db import connections

    django.setup()
    try:
        if server:
            fill(arguments.records)
        return measure(arguments)
    finally:
        for connection in connections.all():
            connection.close()
            connection.close_pool()  # type: ignore[attr-defined]  # only PostgreSQL's has one
        if server:
            with psycopg.connect(server, autocommit=True) as first:
                first.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


if __name__ == "__main__":
    sys.exit(main())

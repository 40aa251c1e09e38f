"""The database sessions that seed: two at a time, since one statement keeps one core busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from django.db import connection

from portal.operations.seeding.plan import Say

SESSIONS = 2
# Millions of rows are sorted and indexed at a time, and nobody waits for a commit.
_SETTINGS = {"work_mem": "256MB", "maintenance_work_mem": "1GB", "synchronous_commit": "off"}

# Returns what to tell when it is done; empty: nothing.
Task = Callable[[], str]


@contextmanager
def fast_session(*, triggers: bool = False) -> Iterator[None]:
    """This thread's connection, set for bulk work. Triggers and foreign keys are off unless they are asked for."""
    settings = _SETTINGS if triggers else {**_SETTINGS, "session_replication_role": "replica"}
    with connection.cursor() as cursor:
        for name, value in settings.items():
            cursor.execute(f"SET {name} = '{value}'")
        try:
            yield
        finally:
            for name in settings:
                cursor.execute(f"RESET {name}")


def run_together(tasks: Sequence[Task], say: Say) -> None:
    """Run the tasks, begun in order, each in a session without triggers; the first error ends it once what runs is
    done."""
    with ThreadPoolExecutor(SESSIONS) as pool:
        running = [pool.submit(_in_own_session, task) for task in tasks]
        try:
            for done in as_completed(running):
                if told := done.result():
                    say(told)
        finally:
            for task in running:
                task.cancel()


def _in_own_session(task: Task) -> str:
    try:
        with fast_session():
            return task()
    finally:
        connection.close()

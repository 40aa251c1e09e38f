"""Shared set-up: the environment that settings need, real stores, no network.

The stores are those that DATABASE_URL and VALKEY_URL name; where one is not set, an embedded server is started on a
free port for the session. Where Django is not installed (the GPU machine) only the kernel and engine tests run and
none of this is needed.
"""

from __future__ import annotations

import gc
import importlib.util
import ipaddress
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A machine may stand still within any example, and chance must not decide about a release: the same code gets the same
# examples. `--hypothesis-profile default` looks for others.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

STATE = tempfile.TemporaryDirectory(prefix="tokenfactory-state-")
HAS_WEB = importlib.util.find_spec("django") is not None


def set_up_django() -> None:
    os.environ.setdefault("SECRET_KEY", "test-secret-key-test-secret-key-test-secret")
    os.environ.setdefault("API_KEY_PEPPER", "test-pepper-test-pepper-test-pepper-test")
    os.environ.setdefault("PUBLIC_URL", "http://127.0.0.1:8000")
    # Never the state of an installation that happens to be in this checkout.
    os.environ["VAR_DIR"] = STATE.name
    # Nothing is collected for tests, but WhiteNoise wants its folder to be there.
    Path(STATE.name, "static").mkdir()
    from config.local.throwaway import start_stores

    start_stores()
    # Not in pyproject.toml: pytest-django would read the settings before the stores have addresses.
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings_test"
    import django

    django.setup()


if HAS_WEB:
    set_up_django()


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where failed tests have a second try (.ci/test), name those that needed it and say what failed at the first."""
    failed = {report.nodeid for name in ("failed", "error") for report in terminalreporter.getreports(name)}
    for report in terminalreporter.getreports("rerun"):
        if report.nodeid not in failed:
            terminalreporter.section(f"Passed only at the second try: {report.nodeid}", sep="_")
            terminalreporter.write_line(report.longreprtext)
            for title, text in report.sections:
                terminalreporter.write_line(f"-- {title}\n{text}")


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Any:
    """Tests speak to this machine only; anything else is a mistake and fails by name."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(address[0]):
            raise RuntimeError(f"A test tried to connect to {address[0]}; tests have no network.")
        connect(self, address)

    socket.socket.connect = guarded  # type: ignore[method-assign]
    yield
    socket.socket.connect = connect  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """The runner empties tables between tests that commit; audit events refuse that everywhere else."""
    from django.db import connection

    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE portal_auditevent DISABLE TRIGGER portal_auditevent_not_emptied")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""Shared set-up: the environment that settings need, real stores, no network.

The stores are those that DATABASE_URL and VALKEY_URL name; where one is not set, an embedded server is started on a
free port for the session. Where Django is not installed (the GPU machine) only the kernel and engine tests run and
none of this is needed.
"""

from __future__ import annotations

import atexit
import importlib.util
import ipaddress
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

HAS_WEB = importlib.util.find_spec("django") is not None


def start_stores() -> None:
    """Set DATABASE_URL and VALKEY_URL, starting embedded servers for those not given."""
    from config.local.postgres import EmbeddedPostgres
    from config.local.program import Program, free_port, log_tail, spawn, stop, wait_until_ready
    from config.local.valkey import EmbeddedValkey

    missing = {"DATABASE_URL", "VALKEY_URL"} - os.environ.keys()
    if not missing:
        return
    folder = Path(tempfile.mkdtemp(prefix="tokenfactory-tests-"))
    # `nobody`, who runs PostgreSQL when we are root, has to pass through.
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def run(program: Program) -> None:
        log = folder / f"{program.name}.log"
        with log.open("wb") as output:
            process: subprocess.Popen[bytes] = spawn(program, output=output)
        # Registered after the folder's removal, so it runs before it.
        atexit.register(stop, program, process)
        try:
            wait_until_ready(program, process)
        except Exception as error:
            raise RuntimeError(f"{error}\n{log_tail(log)}") from error

    if "DATABASE_URL" in missing:
        postgres = EmbeddedPostgres(folder / "postgres", free_port(), is_durable=False)
        run(postgres.program)
        os.environ["DATABASE_URL"] = postgres.url
    if "VALKEY_URL" in missing:
        valkey = EmbeddedValkey(folder / "valkey", free_port(), is_durable=False)
        run(valkey.program)
        os.environ["VALKEY_URL"] = valkey.url


def set_up_django() -> None:
    os.environ.setdefault("SECRET_KEY", "test-secret-key-test-secret-key-test-secret")
    os.environ.setdefault("API_KEY_PEPPER", "test-pepper-test-pepper-test-pepper-test")
    os.environ.setdefault("PUBLIC_URL", "http://127.0.0.1:8000")
    start_stores()
    # Not in pyproject.toml: pytest-django would read the settings before the stores have addresses.
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings_test"
    import django

    django.setup()


if HAS_WEB:
    set_up_django()


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


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

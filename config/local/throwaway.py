"""Stores that live as long as this process: for tests and benchmarks, on the servers that production runs."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from config.local.postgres import EmbeddedPostgres
from config.local.program import Program, ProgramFailed, free_port, log_tail, spawn, stop, wait_until_ready
from config.local.valkey import EmbeddedValkey


def start_stores() -> None:
    """Set DATABASE_URL and VALKEY_URL, starting an embedded server for each that is not given."""
    missing = {"DATABASE_URL", "VALKEY_URL"} - os.environ.keys()
    if not missing:
        return
    folder = Path(tempfile.mkdtemp(prefix="tokenfactory-"))
    # `nobody`, who runs PostgreSQL when we are root, has to pass through.
    folder.chmod(0o755)
    # What is registered last runs first: the servers stop before their folder goes.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if "DATABASE_URL" in missing:
        postgres = EmbeddedPostgres(folder / "postgres", free_port(), is_durable=False)
        _run(postgres.program, folder)
        os.environ["DATABASE_URL"] = postgres.url
    if "VALKEY_URL" in missing:
        valkey = EmbeddedValkey(folder / "valkey", free_port(), is_durable=False)
        _run(valkey.program, folder)
        os.environ["VALKEY_URL"] = valkey.url


def _run(program: Program, folder: Path) -> None:
    log = folder / f"{program.name}.log"
    with log.open("wb") as output:
        process = spawn(program, output=output)
    atexit.register(stop, program, process)
    try:
        wait_until_ready(program, process)
    except ProgramFailed as error:
        raise ProgramFailed(f"{error}\n{log_tail(log)}") from error

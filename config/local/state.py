"""What one shell can know about the product that another shell runs: a lock, a state file, the environment."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from config.local.program import free_port, is_port_taken


@dataclass
class ProgramState:
    pid: int = 0
    state: str = "stopped"
    restarts: int = 0
    # With the id it names one process for good: the kernel gives ids out again.
    born_ticks: int = 0


@dataclass
class State:
    supervisor_pid: int
    is_ready: bool = False
    portal: str = ""
    api: str = ""
    programs: dict[str, ProgramState] = field(default_factory=dict)

    @property
    def ready_line(self) -> str:
        return f"READY portal={self.portal} api={self.api}"


class RunFolder:
    """`VAR_DIR/run`: exists once for each product on this machine."""

    def __init__(self, var_dir: Path) -> None:
        self.path = var_dir / "run"
        self._lock: IO[str] | None = None
        # Programs of a supervisor that was killed; known once the folder is taken.
        self.leftovers: list[ProgramState] = []

    def take(self) -> bool:
        """Become the one supervisor of this folder until this process ends; False when there is one."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / "lock").open("a+")
        # `is_taken` of another shell holds the lock for an instant, a longer one on a busy machine; a supervisor
        # holds it for good.
        deadline = time.monotonic() + 5
        while not try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                lock.close()
                return False
            time.sleep(0.02)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock
        earlier = self._load_state()
        if earlier is not None:
            self.leftovers = list(earlier.programs.values())
        return True

    def forget_state(self) -> None:
        (self.path / "state.json").unlink(missing_ok=True)

    def is_taken(self) -> bool:
        try:
            with (self.path / "lock").open("r") as lock:
                return not try_lock(lock, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def supervisor_pid(self) -> int | None:
        return int((self.path / "lock").read_text() or 0) or None if self.is_taken() else None

    def write_state(self, state: State) -> None:
        write_private(self.path / "state.json", json.dumps(asdict(state), indent=1))

    def read_state(self) -> State | None:
        """The running supervisor's state; None when none runs or it has only just begun."""
        supervisor_pid, state = self.supervisor_pid(), self._load_state()
        # A file that a killed supervisor left says nothing about the one that is just starting.
        return state if state is not None and state.supervisor_pid == supervisor_pid else None

    def _load_state(self) -> State | None:
        try:
            data: dict[str, Any] = json.loads((self.path / "state.json").read_text())
        except FileNotFoundError:
            return None
        programs = {name: ProgramState(**value) for name, value in data.pop("programs").items()}
        return State(programs=programs, **data)

    def kept_port(self, name: str) -> int:
        """The port that `name` had before, while it is free: addresses stay the same from one start to the next."""
        file = self.path / "ports.json"
        ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        if name not in ports or is_port_taken(ports[name]):
            ports[name] = free_port()
            write_private(file, json.dumps(ports, indent=1))
        return ports[name]

    def write_environment(self, environment: Mapping[str, str]) -> None:
        """Keep what `manage.py` needs to reach the running product; it holds secrets, so it is ours to read only."""
        write_private(self.path / "environment.json", json.dumps(dict(environment), indent=1))

    def read_environment(self) -> dict[str, str] | None:
        try:
            environment: dict[str, str] = json.loads((self.path / "environment.json").read_text())
        except FileNotFoundError:
            return None
        return environment


def try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_private(path: Path, text: str) -> None:
    """Replace the file in one step; nobody else may read it, nor see half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)


def kept_secret(path: Path) -> str:
    """The secret in that file, made on the first start; nobody else may read it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, secrets.token_urlsafe(48))
    return path.read_text().strip()

"""What the supervisor and the tests need to know about one long-running program, and how to start and stop it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import IO, Any

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
# Below Linux's default range for outgoing connections (32768 and up): a client that keeps dialling a dead server
# on a port of that range can connect to itself, and the server can then not come back.
PORTS = range(20_000, 32_000)


class ProgramFailed(RuntimeError):
    """A program did not start; the message names it and says where to look."""


class StopAsked(Exception):
    """What was waited for is no longer wanted: the product is to stop."""


@dataclass(frozen=True)
class Program:
    name: str
    argv: Sequence[str]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    # Runs before every start: lay out folders, clear what a killed predecessor left.
    prepare: Callable[[], None] = lambda: None
    # A uid with its group of the same number; None keeps ours.
    run_as: int | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 15.0
    # Only for what hangs: one that ends is noticed at once, and a busy machine may stand still for a long time.
    ready_timeout_s: float = 300.0


def free_port() -> int:
    """A loopback port nobody listens on now."""
    for port in SystemRandom().sample(PORTS, 200):
        if not is_port_taken(port):
            return port
    raise ProgramFailed(f"No free port found between {PORTS.start} and {PORTS.stop}.")


def is_port_taken(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do; without it a port whose old connections still linger would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def answers(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something accepts TCP connections there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def spawn(program: Program, *, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start the program in a process group of its own; it is told to stop if this process dies."""
    program.prepare()
    stop_signal = int(program.stop_signal)

    def follow_the_parent() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, stop_signal)

    identity: dict[str, Any] = {}
    if program.run_as is not None:
        identity = {"user": program.run_as, "group": program.run_as, "extra_groups": []}
    try:
        return subprocess.Popen(
            list(program.argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **program.environment},
            start_new_session=True,
            preexec_fn=follow_the_parent,
            **identity,
        )
    except OSError as error:
        raise ProgramFailed(f"{program.name} cannot be started: {program.argv[0]}: {error.strerror}.") from error


def wait_until_ready(
    program: Program, process: subprocess.Popen[bytes], go_on: Callable[[], None] = lambda: None
) -> None:
    """Return when the program answers; raise ProgramFailed when it exits or its time is over.

    `go_on` is asked at every turn, and ends the wait by raising.
    """
    deadline = time.monotonic() + program.ready_timeout_s
    while not program.is_ready():
        go_on()
        if process.poll() is not None:
            raise ProgramFailed(f"{program.name} ended with {describe_exit(process.returncode)} before it was ready.")
        if time.monotonic() > deadline:
            raise ProgramFailed(f"{program.name} was not ready within {program.ready_timeout_s:.0f} s.")
        time.sleep(0.05)


def stop(program: Program, process: subprocess.Popen[bytes]) -> None:
    """Ask the program to stop, then insist; nothing of its process group is left afterwards."""
    if process.poll() is None:
        process.send_signal(program.stop_signal)
        try:
            process.wait(program.stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill_group(process.pid)


def born_ticks(process_id: int) -> int:
    """When the process was started, in the kernel's clock; 0 when there is none or it has ended."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def kill_group(group_id: int) -> None:
    """End the helpers of a program that is gone: a killed server's workers would keep its port."""
    try:
        os.killpg(group_id, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    return f"signal {signal.Signals(-returncode).name}"


def log_tail(path: Path, lines: int = 20) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""

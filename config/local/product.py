"""The whole product on one machine: starts it in order, keeps it running, stops it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from config.local.plan import Plan
from config.local.program import (
    Program,
    ProgramFailed,
    StopAsked,
    answers,
    born_ticks,
    is_port_taken,
    kill_group,
    spawn,
    stop,
)
from config.local.state import ProgramState, RunFolder, State
from config.local.supervisor import OUTPUT_TIMEOUT_S, Child, Supervisor

# A server that is not ours gets this long to answer.
GIVEN_TIMEOUT_S = 5.0
LEFTOVER_TIMEOUT_S = 10.0
DEFAULT_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "valkey": 6379}


class CannotStart(RuntimeError):
    """The product cannot run here as asked; the message says what to change."""


def say_at_once(text: str) -> None:
    # Of a terminal that has gone nobody reads; the programs are to be stopped all the same.
    with suppress(OSError):
        print(text, flush=True)


class Product:
    """`start`, then `watch`, then `stop`, all on one thread; `request_stop` from anywhere ends the first two."""

    def __init__(
        self,
        *,
        var_dir: Path,
        port: int,
        given: Mapping[str, str],
        say: Callable[[str], None] = say_at_once,
        echo_output: bool = True,
    ) -> None:
        self.var_dir = var_dir.resolve()
        self.plan = Plan(self.var_dir, port, given)
        self.run_folder = RunFolder(self.var_dir)
        self.supervisor = Supervisor(
            logs_dir=self.var_dir / "logs", say=say, echo_output=echo_output, on_change=self._keep_state
        )
        self._say = say
        self._state = State(os.getpid(), portal=self.plan.portal_url, api=self.plan.api_url)

    @property
    def ready_line(self) -> str:
        return self._state.ready_line

    def start(self) -> None:
        """Return when everything is healthy. A failure stops what was started, then raises.

        After `request_stop` it raises StopAsked at its next wait; `stop` is then due as after `watch`.
        """
        if not self.run_folder.take():
            raise CannotStart(f"Another supervisor already runs in {self.var_dir}.")
        self._end_leftovers()
        port = self.plan.port
        if is_port_taken(port):
            raise CannotStart(f"Port {port} is taken by another program. Choose another one: PORT={port + 1} make up")
        try:
            self._start_in_order()
        except StopAsked:
            raise
        except BaseException:
            self.stop()
            raise
        self._state.is_ready = True
        self.run_folder.write_state(self._state)

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        self.supervisor.watch(until)

    def request_stop(self) -> None:
        self.supervisor.request_stop()

    def stop(self) -> None:
        self._state.is_ready = False
        self.supervisor.stop_all()
        self.run_folder.forget_state()

    def _end_leftovers(self) -> None:
        """Programs of a killed supervisor were told to stop by the kernel; those that do not are ended here."""
        deadline = time.monotonic() + LEFTOVER_TIMEOUT_S
        left = [program for program in self.run_folder.leftovers if program.pid]
        while left := [program for program in left if born_ticks(program.pid) == program.born_ticks]:
            self.supervisor.go_on()
            if time.monotonic() > deadline:
                for program in left:
                    kill_group(program.pid)
            time.sleep(0.05)
        self.run_folder.forget_state()

    def _start_in_order(self) -> None:
        plan = self.plan
        for variable, own in (
            ("DATABASE_URL", plan.postgres),
            ("VALKEY_URL", plan.valkey),
            ("ENGINE_ADDRESS", plan.engine),
        ):
            if own is None:
                self._await_given(variable)
        for server in (plan.postgres, plan.valkey):
            if server is not None:
                self._await_all(server.program)
        self.run_folder.write_environment(plan.environment)
        # The engine takes seconds to load its weights; the database is made ready meanwhile.
        engine = None if plan.engine is None else self.supervisor.launch(plan.engine)
        self._prepare()
        if engine is not None:
            self._await(engine)
        self._await_all(plan.web, plan.worker, plan.beat)

    def _await_all(self, *programs: Program) -> None:
        for child in [self.supervisor.launch(program) for program in programs]:
            self._await(child)

    def _await(self, child: Child) -> None:
        self.supervisor.await_ready(child)
        self._progress(child.program.name, f"ready ({time.monotonic() - child.started_at:.1f} s)")

    def _await_given(self, variable: str) -> None:
        """A server that somebody else runs has to be there. Its address is shown without credentials."""
        value = self.plan.environment.get(variable, "")
        address = urlsplit(value if "//" in value else f"//{value}")
        port = address.port or DEFAULT_PORTS.get(address.scheme)
        if address.hostname is None or port is None:
            return  # a socket path or a secret file: its own client will say what is wrong
        deadline = time.monotonic() + GIVEN_TIMEOUT_S
        while not answers(address.hostname, port):
            self.supervisor.go_on()
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{variable} names {address.hostname}:{port}, where nothing answers. "
                    f"Start it, or unset {variable} to use the embedded one."
                )
            time.sleep(0.2)
        self._progress(variable, f"answers on {address.hostname}:{port}")

    def _prepare(self) -> None:
        """Migrate, make the first operator (its password is printed, once), collect static files."""
        program = Program(
            name="prepare",
            argv=[sys.executable, "-m", "config.local.prepare"],
            is_ready=lambda: False,
            environment=self.plan.environment,
        )
        process = spawn(program, output=subprocess.PIPE)
        assert process.stdout is not None
        reader = threading.Thread(target=self._say_lines, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                self.supervisor.go_on()
                time.sleep(0.05)
        finally:
            stop(program, process)
            reader.join(OUTPUT_TIMEOUT_S)
        if process.returncode != 0:
            raise ProgramFailed("The database or the static files could not be made ready; the lines above say why.")

    def _say_lines(self, output: IO[bytes]) -> None:
        for line in output:
            self._say(line.decode(errors="replace").rstrip())

    def _progress(self, name: str, text: str) -> None:
        self._say(f"  {name:<14} {text}")

    def _keep_state(self, programs: dict[str, ProgramState]) -> None:
        self._state.programs = programs
        self.run_folder.write_state(self._state)

"""Runs a list of programs: starts them in order, restarts the ones that die, stops all in reverse order.

One thread decides everything, so there is nothing to lock; a thread for each program only copies its output.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

from config.local.program import (
    Program,
    ProgramFailed,
    StopAsked,
    born_ticks,
    describe_exit,
    kill_group,
    log_tail,
    spawn,
    stop,
    wait_until_ready,
)
from config.local.state import ProgramState

FIRST_BACKOFF_S = 0.25
LAST_BACKOFF_S = 30.0
# A program that lived this long begins again with the first backoff.
STEADY_S = 60.0
TICK_S = 0.1
# For the last words of a program that has ended.
OUTPUT_TIMEOUT_S = 5.0
LOG_BYTES = 10_000_000


@dataclass
class Child:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None
    started_at: float = 0.0
    born_ticks: int = 0
    is_ready: bool = False
    restarts: int = 0
    backoff_s: float = FIRST_BACKOFF_S
    restart_at: float = 0.0

    @property
    def state(self) -> ProgramState:
        if self.process is None:
            return ProgramState(0, "waiting to restart" if self.restart_at else "stopped", self.restarts)
        state = "ready" if self.is_ready else "starting"
        return ProgramState(self.process.pid, state, self.restarts, self.born_ticks)


class Supervisor:
    def __init__(
        self,
        *,
        logs_dir: Path,
        say: Callable[[str], None],
        echo_output: bool = True,
        on_change: Callable[[dict[str, ProgramState]], None] = lambda states: None,
    ) -> None:
        self._logs_dir = logs_dir
        self._say = say
        self._echo_output = echo_output
        self._on_change = on_change
        self._children: list[Child] = []
        # No Event: its lock may be held by the very wait that a signal interrupts.
        self._is_stopping = False

    def launch(self, program: Program) -> Child:
        """Start the program without waiting for it; it belongs to the supervisor from now on."""
        child = Child(program)
        self._children.append(child)
        self._spawn(child)
        return child

    def await_ready(self, child: Child) -> None:
        """Return when the child answers; a failure carries the end of its log. StopAsked when it need not any more."""
        assert child.process is not None
        try:
            wait_until_ready(child.program, child.process, self.go_on)
        except ProgramFailed as error:
            tail = log_tail(self._log_path(child.program))
            raise ProgramFailed(f"{error}\n{tail}\nThe whole log: {self._log_path(child.program)}") from error
        self._mark_ready(child)

    def watch(self, until: Callable[[], bool]) -> None:
        """Keep every program running until the condition holds or `request_stop` was called."""
        while not (self._is_stopping or until()):
            for child in self._children:
                self._look_after(child)
            time.sleep(TICK_S)

    def request_stop(self) -> None:
        """End `watch` and a start under way. Safe in a signal handler and from any thread; a repeat does nothing."""
        self._is_stopping = True

    def go_on(self) -> None:
        """Raise StopAsked once `request_stop` was called: what a wait of the start asks at each turn."""
        if self._is_stopping:
            raise StopAsked

    def stop_all(self) -> None:
        for child in reversed(self._children):
            child.restart_at = 0.0
            if child.process is not None:
                stop(child.program, child.process)
                child.process = None
                # A thread that still prints while the interpreter ends brings it down.
                if child.reader is not None:
                    child.reader.join(OUTPUT_TIMEOUT_S)
                self._say(f"  {child.program.name:<10} stopped")
                self._report()

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if child.restart_at and now >= child.restart_at:
                self._restart(child)
            return
        if child.process.poll() is not None:
            self._bury(child, child.process.returncode, now)
        elif not child.is_ready and child.program.is_ready():
            self._mark_ready(child)
            self._say(f"  {child.program.name:<10} is back ({now - child.started_at:.1f} s)")

    def _bury(self, child: Child, returncode: int, now: float) -> None:
        assert child.process is not None
        kill_group(child.process.pid)
        if now - child.started_at > STEADY_S:
            child.backoff_s = FIRST_BACKOFF_S
        self._say(
            f"  {child.program.name:<10} died ({describe_exit(returncode)}); restarting in {child.backoff_s:.2g} s"
        )
        self._schedule_restart(child, now)

    def _schedule_restart(self, child: Child, now: float) -> None:
        child.process = None
        child.is_ready = False
        child.restarts += 1
        child.restart_at = now + child.backoff_s
        child.backoff_s = min(child.backoff_s * 2, LAST_BACKOFF_S)
        self._report()

    def _restart(self, child: Child) -> None:
        try:
            self._spawn(child)
        except ProgramFailed as error:
            self._say(f"  {error} Trying again in {child.backoff_s:.2g} s.")
            self._schedule_restart(child, time.monotonic())

    def _spawn(self, child: Child) -> None:
        process = spawn(child.program, output=subprocess.PIPE)
        child.process = process
        child.started_at = time.monotonic()
        child.born_ticks = born_ticks(process.pid)
        child.is_ready = False
        assert process.stdout is not None
        child.reader = threading.Thread(target=self._copy_output, args=(child.program, process.stdout), daemon=True)
        child.reader.start()
        self._report()

    def _mark_ready(self, child: Child) -> None:
        child.is_ready = True
        self._report()

    def _report(self) -> None:
        self._on_change({child.program.name: child.state for child in self._children})

    def _log_path(self, program: Program) -> Path:
        return self._logs_dir / f"{program.name}.log"

    def _copy_output(self, program: Program, output: IO[bytes]) -> None:
        self._logs_dir.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(self._log_path(program), maxBytes=LOG_BYTES, backupCount=3, encoding="utf-8")
        for raw in output:
            line = raw.decode(errors="replace").rstrip("\n")
            handler.emit(logging.LogRecord(program.name, logging.INFO, "", 0, line, None, None))
            if self._echo_output:
                self._say(f"{program.name:<10} | {line}")
        handler.close()

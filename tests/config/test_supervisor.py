"""The supervisor starts programs in order, names and restarts the dead, and stops all in reverse order."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from config.local import supervisor as supervisor_module
from config.local.program import Program, ProgramFailed, StopAsked, free_port
from config.local.state import ProgramState
from config.local.supervisor import Supervisor
from config.local.up import STOP_SIGNALS, on_stop_signals

WAIT_S = 120.0


class Rig:
    """A supervisor whose words are kept and whose `watch` runs in this thread for as long as a test asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.states: dict[str, ProgramState] = {}
        self.supervisor = Supervisor(
            logs_dir=folder / "logs", say=self.lines.append, on_change=lambda states: self.states.update(states)
        )

    def program(self, name: str, body: str = "", *, stop_timeout_s: float = WAIT_S) -> Program:
        """A Python program that says it is ready, then runs `body`, then waits to be stopped."""
        ready = self.folder / f"{name}.ready"
        text = f"from pathlib import Path\nprint('hello from {name}', flush=True)\nPath({str(ready)!r}).touch()\n"
        script = self.folder / f"{name}.py"
        script.write_text(text + textwrap.dedent(body) + "\nimport time\ntime.sleep(600)\n")
        return Program(
            name=name,
            argv=[sys.executable, str(script)],
            is_ready=ready.exists,
            prepare=lambda: ready.unlink(missing_ok=True),
            stop_timeout_s=stop_timeout_s,
            ready_timeout_s=WAIT_S,
        )

    def start(self, *programs: Program) -> None:
        for program in programs:
            self.supervisor.await_ready(self.supervisor.launch(program))

    def pid(self, name: str) -> int:
        return self.states[name].pid

    def watch_until_restarted(self, name: str, restarts: int) -> None:
        deadline = time.monotonic() + WAIT_S
        self.supervisor.watch(
            lambda: (
                (self.states[name].restarts >= restarts and self.states[name].state == "ready")
                or time.monotonic() > deadline
            )
        )
        assert self.states[name].restarts >= restarts
        assert self.states[name].state == "ready"

    def said(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.lines)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.supervisor.stop_all()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def await_end(pid: int, deadline: float) -> None:
    """Gone, or a zombie that nobody waits for."""
    with suppress(FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_programs_stop_in_reverse_order(rig: Rig) -> None:
    rig.start(rig.program("first"), rig.program("second"))
    pids = [rig.pid("first"), rig.pid("second")]
    rig.supervisor.stop_all()
    stopped = [line.split()[0] for line in rig.lines if line.endswith("stopped")]
    assert stopped == ["second", "first"]
    assert not any(map(is_alive, pids))


def test_a_killed_program_is_named_and_restarted(rig: Rig) -> None:
    rig.start(rig.program("web"), rig.program("worker"))
    old_pid, other_pid = rig.pid("web"), rig.pid("worker")
    os.kill(old_pid, signal.SIGKILL)
    rig.watch_until_restarted("web", 1)
    assert rig.said("web", "died", "SIGKILL")
    assert rig.said("web", "is back")
    assert rig.pid("web") != old_pid
    assert rig.pid("worker") == other_pid


def test_the_pause_before_a_restart_grows(rig: Rig) -> None:
    rig.start(rig.program("engine"))
    for restarts in (1, 2, 3):
        os.kill(rig.pid("engine"), signal.SIGKILL)
        rig.watch_until_restarted("engine", restarts)
    said = [float(line.split()[-2]) for line in rig.lines if "restarting in" in line]
    assert said == [0.25, 0.5, 1.0]


def test_helpers_of_a_killed_program_do_not_outlive_it(rig: Rig) -> None:
    pid_file = rig.folder / "helper.pid"
    body = f"""
        import subprocess
        helper = subprocess.Popen(["sleep", "600"])
        Path({str(pid_file)!r}).write_text(str(helper.pid))
    """
    rig.start(rig.program("web", body))
    deadline = time.monotonic() + WAIT_S
    while not pid_file.exists() or not pid_file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    helper_pid = int(pid_file.read_text())
    os.kill(rig.pid("web"), signal.SIGKILL)
    rig.watch_until_restarted("web", 1)
    await_end(helper_pid, deadline)


def test_a_program_that_ends_before_it_is_ready_fails_with_its_own_words(rig: Rig) -> None:
    program = Program(
        name="engine",
        argv=[sys.executable, "-c", "import sys; sys.exit('no such model: nothing')"],
        is_ready=lambda: False,
    )
    child = rig.supervisor.launch(program)
    with pytest.raises(ProgramFailed, match=r"engine ended with exit code 1") as caught:
        rig.supervisor.await_ready(child)
    assert "no such model: nothing" in str(caught.value)


def test_a_program_that_is_never_ready_fails_by_name(rig: Rig) -> None:
    program = Program(name="web", argv=["sleep", "600"], is_ready=lambda: False, ready_timeout_s=0.2)
    child = rig.supervisor.launch(program)
    with pytest.raises(ProgramFailed, match=r"web was not ready within"):
        rig.supervisor.await_ready(child)


def test_a_command_that_does_not_exist_fails_by_name(rig: Rig) -> None:
    with pytest.raises(ProgramFailed, match="web cannot be started: /no/such/program"):
        rig.supervisor.launch(Program(name="web", argv=["/no/such/program"], is_ready=lambda: True))


def test_output_goes_to_the_log_and_with_a_prefix_to_the_console(rig: Rig) -> None:
    rig.start(rig.program("web"))
    rig.supervisor.stop_all()
    deadline = time.monotonic() + WAIT_S
    while not rig.said("web", "| hello from web"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (rig.folder / "logs" / "web.log").read_text() == "hello from web\n"


def test_a_program_that_ignores_its_stop_signal_is_killed(rig: Rig) -> None:
    body = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path("ignoring").touch()
    """
    body = body.replace('"ignoring"', repr(str(rig.folder / "ignoring")))
    program = rig.program("stubborn", body, stop_timeout_s=2)
    rig.start(program)
    deadline = time.monotonic() + WAIT_S
    while not (rig.folder / "ignoring").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = rig.pid("stubborn")
    rig.supervisor.stop_all()
    assert not is_alive(pid)


def test_stop_can_be_asked_for_from_another_thread(rig: Rig) -> None:
    rig.start(rig.program("web"))
    threading.Timer(0.2, rig.supervisor.request_stop).start()
    rig.supervisor.watch(lambda: False)


class SignalAtLine:
    """Sends this process the signal when the traced code is at its n-th line, wherever that is."""

    def __init__(self, name: signal.Signals, line: int) -> None:
        self.name = name
        self.line = line
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> SignalAtLine:
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                signal.raise_signal(self.name)
        return self


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    before = {name: signal.getsignal(name) for name in STOP_SIGNALS}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("name", STOP_SIGNALS)
def test_a_stop_signal_ends_watching_in_order_at_whichever_line_it_comes(
    name: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "TICK_S", 0.001)
    tracing = sys.gettrace()
    for line in range(1, 200):
        supervisor = Supervisor(logs_dir=tmp_path, say=lambda text: None)
        on_stop_signals(supervisor.request_stop)
        turns = itertools.count()
        at_line = SignalAtLine(name, line)
        sys.settrace(at_line)
        try:
            supervisor.watch(lambda turns=turns: next(turns) > 3)  # type: ignore[misc]
        finally:
            sys.settrace(tracing)
        if at_line.lines < line:
            # It was over before: every line has had its turn.
            assert line > 10
            return
    raise AssertionError("watch goes on after a stop signal")


def test_a_stop_ends_the_wait_for_a_program_that_starts(rig: Rig) -> None:
    program = Program(name="web", argv=["sleep", "600"], is_ready=lambda: False, ready_timeout_s=600)
    child = rig.supervisor.launch(program)
    threading.Timer(0.2, rig.supervisor.request_stop).start()
    with pytest.raises(StopAsked):
        rig.supervisor.await_ready(child)


def test_the_last_words_of_a_program_are_said_before_it_counts_as_stopped(rig: Rig) -> None:
    body = """
        import signal
        def say_goodbye(number, frame):
            print("goodbye", flush=True)
            raise SystemExit
        signal.signal(signal.SIGTERM, say_goodbye)
        Path("polite").touch()
    """
    polite = rig.folder / "polite"
    rig.start(rig.program("web", body.replace('"polite"', repr(str(polite)))))
    deadline = time.monotonic() + WAIT_S
    while not polite.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rig.supervisor.stop_all()
    assert [line.split()[-1] for line in rig.lines[-2:]] == ["goodbye", "stopped"]


def test_programs_are_stopped_when_the_supervisor_itself_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import subprocess, sys, time
from pathlib import Path
from config.local.program import Program, spawn
process = spawn(Program("web", ["sleep", "600"], lambda: True), output=subprocess.DEVNULL)
Path({str(pid_file)!r}).write_text(str(process.pid))
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + WAIT_S
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    await_end(int(pid_file.read_text()), deadline)


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < first_outgoing

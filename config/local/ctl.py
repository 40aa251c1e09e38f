"""Look at and steer the running product from another shell.

python -m config.local.ctl status
python -m config.local.ctl restart NAME      web, worker, beat, engine, postgres or valkey
python -m config.local.ctl manage COMMAND …  manage.py against the running product
"""

from __future__ import annotations

import os
import signal
import sys
import time

from config.local.location import BASE_DIR, var_dir
from config.local.state import RunFolder, State

RESTART_TIMEOUT_S = 120.0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["status"]:
            return status()
        case ["restart", name]:
            return restart(name)
        case ["manage", *command] if command:
            return manage(command)
    print((__doc__ or "").strip(), file=sys.stderr)
    return 2


def status() -> int:
    state = running_state()
    if state is None:
        return 1
    for name, program in state.programs.items():
        print(f"{name:<10} {program.state:<20} process {program.pid:<8} restarts {program.restarts}")
    print(state.ready_line if state.is_ready else "starting or stopping")
    return 0


def restart(name: str) -> int:
    """End the program; its supervisor starts it again. Returns when it is ready."""
    state = running_state()
    if state is None:
        return 1
    if name not in state.programs:
        print(f"{name!r} is not one of {', '.join(state.programs)}.", file=sys.stderr)
        return 2
    old_pid = state.programs[name].pid
    if old_pid:
        os.kill(old_pid, signal.SIGINT if name == "postgres" else signal.SIGTERM)
    folder, deadline = RunFolder(var_dir()), time.monotonic() + RESTART_TIMEOUT_S
    while time.monotonic() < deadline:
        now = folder.read_state()
        if now is not None and now.programs[name].state == "ready" and now.programs[name].pid != old_pid:
            print(f"{name} is ready again (process {now.programs[name].pid}).")
            return 0
        time.sleep(0.1)
    print(f"{name} was not ready within {RESTART_TIMEOUT_S:.0f} s; see {var_dir() / 'logs'}.", file=sys.stderr)
    return 1


def manage(command: list[str]) -> int:
    environment = RunFolder(var_dir()).read_environment()
    if running_state() is None or environment is None:
        return 1
    os.chdir(BASE_DIR)
    os.execve(sys.executable, [sys.executable, "manage.py", *command], {**os.environ, **environment})


def running_state() -> State | None:
    state = RunFolder(var_dir()).read_state()
    if state is None:
        print("Not running; start it with: make up", file=sys.stderr)
    return state


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The whole product, started as `make up` does, on free ports with a state folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import openai
import psycopg

from config.local.program import free_port, log_tail
from config.local.state import RunFolder, State

ROOT = Path(__file__).resolve().parents[2]
# A machine may stand still for many seconds: waiting long costs nothing where it does not.
START_TIMEOUT_S = 600.0
PATIENCE_S = 180.0
# Of one test; the first of a product starts it too.
TEST_TIMEOUT_S = 1800
# What must not leak in from the shell that runs the tests: the stack has stores, secrets and addresses of its own.
OWN_VARIABLES = re.compile(
    r"^(DATABASE_|VALKEY_|ENGINE_|STRIPE_|SMTP_|SECRET_KEY|API_KEY_PEPPER|PUBLIC_URL|PORT$|VAR_DIR|DEBUG$|DJANGO_)"
)
MODEL = "smollm2-135m-instruct"


@dataclass
class Stack:
    var_dir: Path
    port: int = field(default_factory=free_port)
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @cached_property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not OWN_VARIABLES.match(name)}
        own = {"PORT": str(self.port), "VAR_DIR": str(self.var_dir), "OMP_NUM_THREADS": "1"}
        return inherited | own | dict(self.extra_environment)

    @property
    def portal_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.portal_url}/v1"

    @property
    def output(self) -> str:
        return (self.var_dir / "up.log").read_text(errors="replace")

    # Life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run `config.local.up` and return at its READY line."""
        self.launch()
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while (state := self.state) is None or not state.is_ready:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"The product did not start:\n{log_tail(self.var_dir / 'up.log', 80)}")
            time.sleep(0.1)

    def launch(self) -> None:
        """Run `config.local.up`; return at once."""
        self.var_dir.mkdir(parents=True, exist_ok=True)
        with (self.var_dir / "up.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "config.local.up"],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> int:
        """Stop it as Ctrl-C does; the supervisor's exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def command(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of the commands of config.local, as another shell would run it."""
        return subprocess.run(
            [sys.executable, "-m", f"config.local.{module}", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def manage(self, *command: str) -> str:
        result = self.command("ctl", "manage", *command)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    # Programs ---------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        return RunFolder(self.var_dir).read_state()

    def pid(self, name: str) -> int:
        state = self.state
        assert state is not None
        return state.programs[name].pid

    def kill(self, name: str) -> int:
        """kill -9; the process id that is gone. One that another's end has ended too is awaited first."""
        pid = self.await_successor(name, 0)
        os.kill(pid, signal.SIGKILL)
        return pid

    def await_successor(self, name: str, old_pid: int, timeout_s: float = PATIENCE_S) -> int:
        """The id of the process that runs in its place, once it is ready."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            state = self.state
            if state is not None and state.programs[name].pid != old_pid and state.programs[name].state == "ready":
                return state.programs[name].pid
            time.sleep(0.1)
        raise AssertionError(f"{name} did not come back:\n{log_tail(self.var_dir / 'logs' / f'{name}.log', 40)}")

    # Data -------------------------------------------------------------------------------------------

    @property
    def database_url(self) -> str:
        environment = RunFolder(self.var_dir).read_environment()
        assert environment is not None
        return environment["DATABASE_URL"]

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query, parameters).fetchall()  # type: ignore[arg-type]

    def value(self, query: str, *parameters: Any) -> Any:
        return self.rows(query, *parameters)[0][0]

    def await_rows(self, query: str, *parameters: Any, timeout_s: float = PATIENCE_S) -> list[tuple[Any, ...]]:
        """Ask until there is a row."""
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(psycopg.OperationalError):
                if rows := self.rows(query, *parameters):
                    return rows
            assert time.monotonic() < deadline, f"no row within {timeout_s} s: {query}"
            time.sleep(0.2)

    # People -----------------------------------------------------------------------------------------

    @cached_property
    def demo_key(self) -> str:
        return self.manage("demo_key").splitlines()[-1]

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": self.api_url, "api_key": self.demo_key, "max_retries": 0} | options)

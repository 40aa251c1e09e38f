"""`make up`, `make down` and what another shell can do with a running product."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
import urllib.request
from pathlib import Path

import pytest

from config.local.program import is_port_taken
from tests.end_to_end.stack import PATIENCE_S, START_TIMEOUT_S, Stack


def test_the_ready_line_names_portal_and_api(scripted_stack: Stack) -> None:
    ready = f"READY portal={scripted_stack.portal_url} api={scripted_stack.api_url}"
    assert ready in scripted_stack.output.splitlines()
    assert urllib.request.urlopen(scripted_stack.portal_url, timeout=PATIENCE_S).status == 200


def test_every_part_has_its_progress_line(scripted_stack: Stack) -> None:
    lines = scripted_stack.output.splitlines()
    positions = []
    for name in ("postgres", "valkey", "migrate", "engine", "web", "worker", "beat"):
        found = [n for n, line in enumerate(lines) if line.split()[:2] in ([name, "ready"], [name, "done"])]
        assert found, f"no progress line for {name}"
        positions.append(found[0])
    assert positions == sorted(positions)


def test_starting_twice_says_where_it_runs(scripted_stack: Stack) -> None:
    before = scripted_stack.state
    second = scripted_stack.command("up")
    assert second.returncode == 0, second.stderr
    assert "Already running" in second.stdout
    assert before is not None
    assert second.stdout.splitlines()[-1] == before.ready_line
    assert scripted_stack.state == before


def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = Stack(tmp_path, port=port).command("up")
    assert result.returncode == 1
    assert f"Port {port} is taken" in result.stderr
    assert f"PORT={port + 1} make up" in result.stderr
    assert not (tmp_path / "postgres").exists()


def test_an_odd_port_is_refused_by_name(tmp_path: Path) -> None:
    stack = Stack(tmp_path, extra_environment={"PORT": "eighty"})
    result = stack.command("up")
    assert result.returncode == 2
    assert "PORT='eighty'" in result.stderr


@pytest.mark.parametrize(
    ("variable", "scheme"), [("DATABASE_URL", "postgresql://me:word@"), ("VALKEY_URL", "redis://")]
)
def test_a_given_server_that_does_not_answer_is_named(
    tmp_path: Path, variable: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(tmp_path, extra_environment={variable: f"{scheme}127.0.0.1:1/0"})
    result = stack.command("up")
    assert result.returncode == 1
    assert f"{variable} names 127.0.0.1:1, where nothing answers" in result.stderr
    assert "word" not in result.stdout + result.stderr


def test_secrets_are_for_the_owner_only_and_not_in_the_output(scripted_stack: Stack) -> None:
    files = list((scripted_stack.var_dir / "secrets").iterdir())
    assert {file.name for file in files} >= {"secret_key", "api_key_pepper", "database_password"}
    for file in [*files, scripted_stack.var_dir / "run" / "environment.json"]:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() not in scripted_stack.output


def test_status_lists_every_program(scripted_stack: Stack) -> None:
    result = scripted_stack.command("ctl", "status")
    assert result.returncode == 0
    listed = [line.split()[0] for line in result.stdout.splitlines()]
    assert listed[:6] == ["postgres", "valkey", "engine", "web", "worker", "beat"]


def test_one_program_can_be_restarted_by_name(scripted_stack: Stack) -> None:
    old_pid, other_pid = scripted_stack.pid("beat"), scripted_stack.pid("web")
    result = scripted_stack.command("ctl", "restart", "beat")
    assert result.returncode == 0, result.stderr
    assert scripted_stack.pid("beat") != old_pid
    assert scripted_stack.pid("web") == other_pid
    assert scripted_stack.command("ctl", "restart", "nginx").returncode == 2


def test_a_dead_program_is_named_and_restarted(scripted_stack: Stack) -> None:
    old_pid = scripted_stack.kill("beat")
    scripted_stack.await_successor("beat", old_pid)
    assert any(
        line.split()[:2] == ["beat", "died"] and "SIGKILL" in line for line in scripted_stack.output.splitlines()
    )


def test_an_operator_is_made_with_a_password_that_is_shown_once(scripted_stack: Stack) -> None:
    shown = scripted_stack.manage("operator", "--email", "ada@example.com")
    assert "ada@example.com" in shown
    assert not scripted_stack.value("SELECT password = '' FROM portal_user WHERE email = 'ada@example.com'")


def test_the_first_operator_is_shown_once(scripted_stack: Stack) -> None:
    operators = scripted_stack.value("SELECT count(*) FROM portal_user WHERE is_superuser OR is_staff")
    assert operators >= 1
    assert scripted_stack.output.lower().count("password") == 1


def test_down_stops_everything_and_a_new_start_keeps_the_data(scripted_stack: Stack) -> None:
    stack = scripted_stack
    state = stack.state
    assert state is not None
    pids = [program.pid for program in state.programs.values()]
    key = stack.demo_key
    down = stack.command("down")
    assert (down.returncode, down.stdout.strip()) == (0, "Stopped.")
    assert stack.process is not None
    assert stack.process.wait(PATIENCE_S) == 0
    assert not any(is_alive(pid) for pid in pids)
    assert not is_port_taken(stack.port)
    assert stopped_in_the_end(stack) == list(reversed(state.programs))
    assert stack.command("down").stdout.strip() == "Not running."
    assert stack.command("ctl", "status").returncode == 1

    # Killed outright the second time: nothing may stand in the way of the third start.
    stack.start()
    assert stack.client(api_key=key).models.list().data
    assert stack.process is not None
    stack.process.send_signal(signal.SIGKILL)
    stack.process.wait()
    stack.start()
    assert stack.client(api_key=key).models.list().data


@pytest.mark.parametrize("line", ["Starting;", "postgres       ready"])
def test_a_stop_while_it_starts_ends_in_order(state_folder: Path, line: str) -> None:
    stack = Stack(
        state_folder / f"interrupted-at-{line.split()[0].strip(';')}", extra_environment={"ENGINE_KIND": "scripted"}
    )
    stack.launch()
    assert stack.process is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    while line not in stack.output:
        assert stack.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stack.process.send_signal(signal.SIGTERM)
    assert stack.process.wait(PATIENCE_S) == 0
    assert stack.output.splitlines()[-1] == "Stopped; start again with: make up"
    assert "postgres" in stopped_in_the_end(stack)
    assert "Traceback" not in stack.output
    assert stack.state is None


def stopped_in_the_end(stack: Stack) -> list[str]:
    """The programs, in the order in which the last stop ended them."""
    lines = stack.output.splitlines()
    last = len(lines) - lines[::-1].index("Stopping")
    return [line.split()[0] for line in lines[last:] if line.split()[1:] == ["stopped"]]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

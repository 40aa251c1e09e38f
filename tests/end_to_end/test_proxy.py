"""Behind the nginx configuration that ships: events leave one by one, and a client that leaves is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from config.local.program import Program, answers, free_port, spawn, stop, wait_until_ready
from tests.end_to_end.stack import MODEL, PATIENCE_S, ROOT, Stack

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"

pytestmark = pytest.mark.skipif(not os.access(NGINX, os.X_OK), reason="nginx is not installed")


@pytest.fixture(scope="module")
def proxy_url(scripted_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("nginx")
    port = free_port()
    text = (ROOT / "docker" / "nginx.conf").read_text()
    for shipped, here in {
        "server web:8000": f"server 127.0.0.1:{scripted_stack.port}",
        "listen 80;": f"listen 127.0.0.1:{port};",
        "http {\n": "http {\n" + "".join(f"  {kind}_temp_path {folder};\n" for kind in ("client_body", "proxy")),
    }.items():
        assert text.count(shipped) == 1
        text = text.replace(shipped, here)
    configuration = folder / "nginx.conf"
    configuration.write_text(f"pid {folder}/pid;\nuser {'root' if os.geteuid() == 0 else 'nobody'};\n{text}")
    program = Program(
        name="nginx",
        argv=[NGINX, "-c", str(configuration), "-e", str(folder / "error.log"), "-g", "daemon off;"],
        is_ready=lambda: answers("127.0.0.1", port),
    )
    process = spawn(program, output=subprocess.DEVNULL)
    try:
        wait_until_ready(program, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(program, process)


def read_words(stream: Any, count: int) -> None:
    """Return when so many have come."""
    text = ""
    for chunk in stream:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if len(text.split()) >= count:
            return
    raise AssertionError(f"the stream ended with: {text}")


@pytest.mark.parametrize("words", [1, 2, 30])
def test_events_are_not_held_back(words: int, scripted_stack: Stack, proxy_url: str) -> None:
    """After so many words the engine says nothing more. A proxy that collects would wait for more, and so would we."""
    client = scripted_stack.client(base_url=f"{proxy_url}/v1", timeout=PATIENCE_S)
    with client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"TOKENS:40 STALL:{words}"}], stream=True
    ) as stream:
        read_words(stream, words)


def test_a_client_that_leaves_is_noticed(scripted_stack: Stack, proxy_url: str) -> None:
    client = scripted_stack.client(base_url=f"{proxy_url}/v1")
    response = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "TOKENS:2000 STALL:10"}], stream=True
    )
    request_id = response.headers["x-request-id"]
    with response.parse() as stream:
        read_words(stream, 10)
    ((status, completion_tokens),) = scripted_stack.await_rows(
        "SELECT status, completion_tokens FROM billing_usage_record WHERE request_id = %s AND status <> 'started'",
        request_id,
    )
    assert (status, completion_tokens) == ("cancelled", 10)


def test_pages_and_static_files_pass(proxy_url: str) -> None:
    with urllib.request.urlopen(proxy_url, timeout=PATIENCE_S) as answer:
        assert answer.status == 200

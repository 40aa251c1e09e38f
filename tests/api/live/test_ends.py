"""How calls end other than well: callers that leave, engines that fail, servers that stop. Each leaves one record."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inference_grpc.errors import BY_CODE
from tests.api.live.service import (
    MODEL,
    PATIENCE_S,
    Account,
    Engine,
    Web,
    at_some_pace,
    await_word,
    engine_info,
    eventually,
    make_account,
    make_model,
    tokens_of_idle,
)


def leave_after(
    account: Account, body: dict[str, Any], wait_for: bytes = b"", wait_until: Callable[[], object] | None = None
) -> None:
    """Post, read until the call is recorded, `wait_for` came and `wait_until` is true, and close the connection."""
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {account.secret}\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", account.web.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + payload)
        received = b""
        while wait_for not in received:
            part = connection.recv(65536)
            assert part, received
            received += part
        eventually(account.records)
        if wait_until is not None:
            eventually(wait_until)


def test_a_caller_that_leaves_a_stream_pays_for_what_was_made(each_account: Account) -> None:
    body = each_account.chat("PACE:5 TOKENS:2000", stream=True)
    leave_after(each_account, body, wait_for=b'"content":" ')
    record = each_account.record()
    assert (record.status, record.error_code) == ("cancelled", "client_closed")
    assert 0 < record.completion_tokens < 2000
    assert record.prompt_tokens > 0
    assert record.cost_nano > 0
    assert not record.is_estimated
    each_account.assert_books_agree()


def test_a_caller_that_leaves_before_a_plain_answer_pays_for_what_was_made(
    each_account: Account, engine: Engine
) -> None:
    made_before = tokens_of_idle(engine)
    # The record is written before the engine hears of the call, and what is left by then costs nothing.
    leave_after(
        each_account,
        each_account.chat("PACE:5 TOKENS:2000"),
        wait_until=lambda: engine_info(engine).completion_tokens > made_before,
    )
    record = each_account.record()
    assert (record.status, record.error_code) == ("cancelled", "client_closed")
    assert 0 < record.completion_tokens < 2000
    assert record.cost_nano > 0
    each_account.assert_books_agree()


def test_an_engine_that_ignores_the_cancel_is_billed_by_its_own_count(account: Account) -> None:
    def attempt(pace: float) -> bool | None:
        left = make_account(account.web)
        leave_after(left, left.chat(f"IGNORE_CANCEL PACE:{pace} TOKENS:10", stream=True), wait_for=b'"content":"')
        record = left.record()
        assert (record.status, record.completion_tokens, record.is_estimated) == ("completed", 10, False)
        left.assert_books_agree()
        # Nothing where it had ended before its caller was gone.
        return record.error_code == "client_closed" or None

    assert at_some_pace(attempt)


@pytest.mark.parametrize("code", sorted(set(BY_CODE) - {"slow_reader"}))
def test_an_engine_error_before_the_first_token_is_a_status_and_free(account: Account, code: str) -> None:
    answer = account.post(f"FAIL:{code}", stream=True)
    assert answer.status_code >= 400
    assert answer.headers["content-type"] == "application/json"
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) <= 120
    records = eventually(lambda: [r for r in account.records() if r.status != "started"])
    assert [(r.status, r.cost_nano) for r in records] == [("failed", 0)]
    account.assert_books_agree()
    # One good call: three bad ones in a row would open the breaker for the tests that follow.
    eventually(lambda: account.post("SAY: ok").status_code == 200)


def test_an_engine_that_dies_in_the_middle_ends_the_stream_with_an_error(each_account: Account) -> None:
    def attempt(pace: float) -> list[str] | None:
        # The latest of many failures may be the one that opens the breaker.
        eventually(lambda: each_account.post("SAY: ok").status_code == 200)
        account = make_account(each_account.web)
        body = account.chat(f"TOKENS:50 PACE:{pace} FAIL:device_fault@5", stream=True)
        with account.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        record = account.record()
        assert (record.status, record.error_code, record.completion_tokens) == ("failed", "device_fault", 5)
        assert record.cost_nano == 0
        account.assert_books_agree()
        # A status where the caller had got nothing yet.
        return lines if answer.status_code == 200 else None

    lines = at_some_pace(attempt)
    assert lines[-1].startswith('data: {"error":')
    assert "data: [DONE]" not in lines


def test_a_broken_session_ends_the_stream_and_the_next_call_works(account: Account) -> None:
    text = account.post("TOKENS:50 PACE:200 BREAK:5", stream=True).text
    assert '"error"' in text
    assert account.record().status == "failed"
    eventually(lambda: account.post("SAY: back").status_code == 200)


def test_another_deployment_serves_when_one_is_dead(account: Account, engine: Engine) -> None:
    make_model("twice-deployed", "127.0.0.1:1", engine.address)
    # A session with an engine takes a moment to stand.
    eventually(lambda: account.post("SAY: hi", model="twice-deployed").status_code == 200)
    for _ in range(6):
        answer = account.post("SAY: hi", model="twice-deployed")
        assert answer.status_code == 200, answer.text
        # The id in the answer is that of the record that was completed.
        served = [r for r in account.records() if r.status == "completed"][-1]
        assert answer.json()["id"] == f"chatcmpl-{served.request_id.hex}"
        assert answer.headers["request-id"] == str(served.request_id)
    assert all(r.cost_nano == 0 for r in account.records() if r.status == "failed")
    account.assert_books_agree()


def test_an_engine_that_is_down_is_a_503_and_recovers(account: Account, folder: Path) -> None:
    engine = Engine(folder)
    make_model("lonely-model", engine.address)
    answer = account.post("x", model="lonely-model")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_unavailable"
    assert int(answer.headers["retry-after"]) > 0
    account.assert_books_agree()
    assert {record.status for record in account.records()} <= {"failed"}
    engine.start()
    try:
        eventually(lambda: account.post("SAY: hi", model="lonely-model").status_code == 200)
    finally:
        engine.stop()
    account.assert_books_agree()


@pytest.mark.parametrize("kind", ["granian", "uvicorn"])
def test_a_server_that_stops_lets_calls_end_or_tells_them(own_web: Callable[..., Web], kind: str) -> None:
    for drain_s in (3, 12, 48):
        web = own_web(kind, DRAIN_TIMEOUT_S=str(drain_s))
        account = make_account(web)
        short, long = stop_beside_calls(web, account, "PACE:20 TOKENS:20", "PACE:20 TOKENS:2000")
        assert "data: [DONE]" not in long
        assert '"error"' in long
        statuses = sorted((r.status, r.completion_tokens) for r in account.records())
        assert statuses[0][0] == "cancelled"
        assert statuses[0][1] > 0
        account.assert_books_agree()
        # A second is enough for it, where the machine does not stand still until the server's patience ends.
        if "data: [DONE]" in short:
            assert statuses[1] == ("completed", 20)
            return
    raise AssertionError(short)


def stop_beside_calls(web: Web, account: Account, *prompts: str) -> list[str]:
    """Stop the server once it answers all of these calls, and return what each got in the end."""
    begun = threading.Semaphore(0)

    def call(prompt: str) -> str:
        body = account.chat(prompt, stream=True)
        with account.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            await_word(lines)
            begun.release()
            return "\n".join(lines)

    with ThreadPoolExecutor(len(prompts)) as pool:
        calls = [pool.submit(call, prompt) for prompt in prompts]
        for _ in prompts:
            assert begun.acquire(timeout=PATIENCE_S)
        assert web.popen is not None
        web.popen.send_signal(signal.SIGTERM)
        web.popen.wait(PATIENCE_S)
        return [each.result(PATIENCE_S) for each in calls]


def test_a_silent_stream_is_kept_alive(each_account: Account) -> None:
    with each_account.http.stream(
        "POST", "/v1/chat/completions", json=each_account.chat("STALL:2", stream=True)
    ) as answer:
        lines = answer.iter_lines()
        while (line := next(lines)) != ": ping":
            assert "[DONE]" not in line
    assert each_account.record().status == "cancelled"


def test_headers_come_before_the_body_ends(account: Account) -> None:
    body = account.chat("STALL:1 TOKENS:300", stream=True)
    with account.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        assert [record.status for record in account.records()] == ["started"]
    assert account.record().status == "cancelled"


def test_the_usual_model_name_is_echoed(account: Account) -> None:
    assert account.post("SAY: hi").json()["model"] == MODEL

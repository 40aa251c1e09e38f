"""Hundreds of streams, many left by their callers: nothing is lost, refused, or kept open behind them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx2 as httpx
from django.db import connection
from django.utils import timezone

from portal.catalog.services import change_price
from tests.api.live.service import (
    PATIENCE_S,
    Account,
    Engine,
    Web,
    await_word,
    engine_info,
    eventually,
    make_account,
    make_model,
    set_limit,
    tokens_of_idle,
)
from tests.api.live.test_ends import leave_after

STREAMS, CALLERS = 150, 60


def sockets_of(web: Web) -> int:
    """Open files of the server's workers that are sockets."""
    assert web.popen is not None
    workers = Path(f"/proc/{web.popen.pid}/task/{web.popen.pid}/children").read_text().split()
    links = [link for pid in workers for link in Path(f"/proc/{pid}/fd").iterdir()]
    count = 0
    for link in links:
        try:
            count += os.readlink(link).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def stream(account: Account, number: int) -> int:
    """Every third caller leaves after the first words."""
    body = account.chat("PACE:40 TOKENS:8", stream=True, max_tokens=20)
    headers = {"authorization": f"Bearer {account.secret}"}
    with (
        httpx.Client(timeout=PATIENCE_S) as client,
        client.stream("POST", f"{account.web.url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        if number % 3 == 0:
            next(answer.iter_lines())
        else:
            answer.read()
        return answer.status_code


def connections_to_postgresql() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_streams_need_few_connections_and_leave_nothing_open(own_web: Callable[..., Web]) -> None:
    """PostgreSQL lends this gateway four connections, far fewer than there are streams."""
    # No keep-alive begins an answer whose first token has not come: who has got a line has got what costs something.
    web = own_web(DATABASE_POOL_MAX="4", STREAM_KEEPALIVE_S="600")
    account = make_account(web)
    assert account.post("SAY: hi").status_code == 200
    before = connections_to_postgresql()
    most = [before]
    is_over = threading.Event()

    def watch() -> None:
        try:
            while not is_over.is_set():
                most.append(connections_to_postgresql())
                time.sleep(0.05)
        finally:
            connection.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(CALLERS) as pool:
            statuses = Counter(pool.map(lambda number: stream(account, number), range(STREAMS)))
    finally:
        is_over.set()
        watcher.join()
    assert statuses == {200: STREAMS}
    eventually(lambda: Counter(row.status == "started" for row in account.records()) == {False: STREAMS + 1})
    assert all(record.cost_nano > 0 for record in account.records())
    account.assert_books_agree()
    # Of these three were open before; also the watcher's own, and what the gateways of other tests look up.
    assert max(most) <= before + 8
    # The stores, the engine and the listener; no caller's.
    eventually(lambda: sockets_of(web) < CALLERS // 2)


def test_calls_that_time_out_give_their_place_back(own_web: Callable[..., Web], engine: Engine) -> None:
    """A limit of four at a time, and three times four calls to which the engine never says a word."""
    account = make_account(own_web(REQUEST_TIMEOUT_S="1"))
    set_limit(account, "concurrency", "now", 4)
    with ThreadPoolExecutor(4) as pool:
        statuses = Counter(pool.map(lambda _: account.post("STALL:0 TOKENS:5").status_code, range(12)))
    assert set(statuses) == {504}, statuses
    eventually(lambda: account.post("SAY: hi").status_code == 200)
    account.assert_books_agree()
    assert {record.cost_nano for record in account.records() if record.status == "failed"} == {0}


def test_a_body_that_does_not_come_is_let_go_with_the_limit(own_web: Callable[..., Web]) -> None:
    """Byte after byte would hold memory for ever, and nobody knows yet whose."""
    web = own_web(REQUEST_BODY_TIMEOUT_S="2")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", web.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head)
        answer = b""
        while b"request_timeout" not in answer:
            part = connection.recv(65536)
            assert part, answer
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"within 2 s, the limit here" in answer


def test_a_caller_that_leaves_before_the_first_byte_pays_for_no_full_answer(account: Account, engine: Engine) -> None:
    """The engine stops before its answer of 300 words, and the hold of all 300 comes back."""
    tokens_of_idle(engine)
    body = account.chat("TTFT:600000 TOKENS:300", stream=True, max_tokens=300)
    leave_after(account, body, wait_until=lambda: engine_info(engine).running)
    record = account.record()
    assert (record.status, record.error_code) == ("cancelled", "client_closed")
    assert record.completion_tokens == 0
    assert record.duration_ms < 600_000
    assert record.cost_nano <= record.prompt_tokens * 400
    account.assert_books_agree()


def test_a_stream_cut_under_a_public_name_keeps_its_price_and_its_cached_count(
    account: Account, engine: Engine
) -> None:
    """The engine knows the model by another name; the price is that of the name the caller used."""
    model = make_model("public-name", engine.address)
    change_price(
        model=model, input_nano=10**9, cached_input_nano=10**8, output_nano=10**10,
        effective_from=timezone.now() + timedelta(microseconds=1), actor=None,
    )  # fmt: skip
    prompt = "CACHED:100 PACE:2 TOKENS:400 " + "word " * 200
    body = account.chat(prompt, model="public-name", stream=True, max_tokens=400)
    with account.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        await_word(lines)
    record = account.record()
    assert (record.status, record.model, record.cached_tokens) == ("cancelled", "public-name", 100)
    fresh = record.prompt_tokens - record.cached_tokens
    assert record.cost_nano == fresh * 1000 + 100 * 100 + record.completion_tokens * 10_000
    assert record.completion_tokens > 0
    account.assert_books_agree()


def test_the_headers_of_a_token_limit_agree_with_its_refusals(account: Account) -> None:
    set_limit(account, "tokens", "minute", 400)
    served = account.post("SAY: hi", max_tokens=150)
    assert served.status_code == 200
    assert served.headers["x-ratelimit-limit-tokens"] == "400"
    with ThreadPoolExecutor(5) as pool:
        # Each takes nearly all that there is, and there is room for another after most of a minute.
        answers = list(pool.map(lambda _: account.post("TOKENS:350", max_tokens=350), range(5)))
    (admitted,) = (answer for answer in answers if answer.status_code == 200)
    assert int(admitted.headers["x-ratelimit-remaining-tokens"]) < 50
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 4
    assert all("400 tokens per minute" in answer.json()["error"]["message"] for answer in refused)

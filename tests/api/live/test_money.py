"""Credit and limits under parallel calls, and what happens when Valkey or a gateway is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from api import counters, credit
from api.tasks import refresh_balances
from billing.ledger.selectors import held_nano
from billing.ledger.services import grant_credit
from portal.catalog.models import Deployment
from portal.catalog.services import change_price
from portal.quotas import snapshot
from portal.quotas.models import Quota
from tests.api.live.service import (
    MODEL,
    PATIENCE_S,
    Account,
    Engine,
    Web,
    await_word,
    eventually,
    make_account,
    make_model,
    pull_receipts,
)


def call_in_parallel(count: int, call: Callable[[], httpx.Response]) -> list[httpx.Response]:
    gate = threading.Barrier(count)

    def wait_and_call(_: int) -> httpx.Response:
        gate.wait()
        return call()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


def make_dear_model(name: str, hold_nano: int) -> None:
    """A model whose call with max_tokens=100 holds about `hold_nano`."""
    address = Deployment.objects.get(model__name=MODEL).address
    model = make_model(name, address)
    price = hold_nano * 10_000
    prices: dict[str, Any] = {"input_nano": 0, "cached_input_nano": None, "output_nano": price}
    change_price(model=model, **prices, effective_from=timezone.now() + timedelta(microseconds=1), actor=None)


def set_quota(account: Account, kind: str, window: str, limit: int, *, of_key: bool = False) -> None:
    scope = {"api_key": account.api_key} if of_key else {}
    Quota.objects.create(organization=account.organization, kind=kind, window=window, limit=limit, **scope)
    snapshot.publish(account.organization.id)


def statuses(answers: Sequence[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def test_fifty_parallel_calls_with_credit_for_three_admit_three(account: Account) -> None:
    make_dear_model("third-of-credit", settings.FREE_CREDIT_NANO // 3 - 10)
    # Each costs all that it holds: it does not matter which have ended when another begins.
    answers = call_in_parallel(50, lambda: account.post("TOKENS:100", model="third-of-credit", max_tokens=100))
    assert statuses(answers) == {200: 3, 429: 47}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert len(account.records()) == 3
    assert account.balance_nano >= 0
    account.assert_books_agree()


def test_a_hold_is_the_upper_bound_and_comes_back(account: Account) -> None:
    free = settings.FREE_CREDIT_NANO
    with account.http.stream(
        "POST", "/v1/chat/completions", json=account.chat("STALL:1 TOKENS:100", stream=True, max_tokens=100)
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        (record,) = account.records()
        assert record.status == "started"
        assert account.copy_nano == free - record.hold_nano == free - held_nano(account.organization.id)
        # 100 tokens of output at $2.03 per million, and the prompt.
        assert record.hold_nano > 203_000
    account.assert_books_agree()


def test_without_max_tokens_the_models_default_is_held_not_the_balance(account: Account) -> None:
    with account.http.stream(
        "POST", "/v1/chat/completions", json=account.chat("STALL:1 TOKENS:20", stream=True)
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert account.post("SAY: second").status_code == 200
    assert max(record.hold_nano for record in account.records()) < 10_000_000
    account.assert_books_agree()


def test_a_grant_counts_at_once(account: Account) -> None:
    assert account.post("SAY: hi").status_code == 200
    before = eventually(lambda: account.copy_nano == account.balance_nano and account.balance_nano)
    grant_credit(organization_id=account.organization.id, amount_nano=7, reason="test", key=f"t:{account.secret[-9:]}")
    assert account.copy_nano == before + 7


def test_the_same_price_version_holds_for_the_whole_call(account: Account) -> None:
    address = Deployment.objects.get(model__name=MODEL).address
    model = make_model("repriced", address)
    with account.http.stream(
        "POST", "/v1/chat/completions", json=account.chat("STALL:1 TOKENS:10", model="repriced", stream=True)
    ) as answer:
        lines = answer.iter_lines()
        await_word(lines)
        prices: dict[str, Any] = {"input_nano": 0, "cached_input_nano": None, "output_nano": 0}
        change_price(model=model, **prices, effective_from=timezone.now(), actor=None)
        assert [record.status for record in account.records()] == ["started"]
    record = account.record()
    assert record.completion_tokens == 1
    assert record.cost_nano == record.prompt_tokens * 400 + record.completion_tokens * 2030
    account.assert_books_agree()


# Limits ---------------------------------------------------------------------------------------------


def test_requests_per_minute(account: Account) -> None:
    set_quota(account, "requests", "minute", 3)
    began_at = time.monotonic()
    answers = call_in_parallel(8, lambda: account.post("SAY: hi"))
    # Every 20 s there is room for one more.
    came_back = int((time.monotonic() - began_at) / 20)
    assert set(statuses(answers)) == {200, 429}
    assert 3 <= statuses(answers)[200] <= 3 + came_back
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert "3 requests per minute of this organization" in error["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 20
    served = next(answer for answer in answers if answer.status_code == 200)
    assert served.headers["x-ratelimit-limit-requests"] == "3"
    assert served.headers["x-ratelimit-remaining-requests"] in "210"
    account.assert_books_agree()


def test_tokens_per_minute_count_tokens_not_requests(account: Account) -> None:
    set_quota(account, "tokens", "minute", 100)
    # The one that is admitted overdraws the limit by two minutes.
    answers = call_in_parallel(5, lambda: account.post("TOKENS:300", max_tokens=300))
    assert statuses(answers) == {200: 1, 429: 4}
    assert account.post("SAY: hi", max_tokens=10).json()["error"]["type"] == "tokens"


def test_what_an_estimate_took_too_much_is_given_back(account: Account) -> None:
    set_quota(account, "tokens", "minute", 1000)
    for _ in range(5):
        answer = account.post("SAY: hi", max_tokens=900)
        assert answer.status_code == 200, answer.text


def test_a_call_refused_for_another_limit_costs_no_request(account: Account) -> None:
    set_quota(account, "requests", "minute", 2)
    set_quota(account, "concurrency", "now", 1, of_key=True)
    with account.http.stream(
        "POST", "/v1/chat/completions", json=account.chat("STALL:1 TOKENS:300", stream=True)
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        refused = account.post("SAY: hi")
        assert refused.status_code == 429
        assert "1 requests at the same time of this API key" in refused.json()["error"]["message"]
    eventually(lambda: account.post("SAY: hi").status_code == 200)


def test_failed_calls_give_their_place_back(account: Account) -> None:
    set_quota(account, "concurrency", "now", 2)
    for _ in range(4):
        assert account.post("FAIL:engine_error").status_code == 500
        assert account.post("SAY: ok").status_code == 200
    account.assert_books_agree()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "FAIL:engine_error"}]}),
        ("/v1/responses", {"input": "FAIL:engine_error"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "FAIL:engine_error"}], "max_tokens": 50}),
    ],
)
def test_a_hundred_failures_on_a_route_leave_nothing_held(account: Account, path: str, body: dict[str, Any]) -> None:
    """Also no token of a limit, and no place: the hundredth has as much room as the first."""
    set_quota(account, "concurrency", "now", 8)
    set_quota(account, "tokens", "day", 20_000)
    headers = {"x-api-key": account.secret, "anthropic-version": "2023-06-01"}

    def fail(_: int) -> int:
        return account.http.post(path, json={"model": MODEL, **body}, headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(fail, range(100))) == {500}
    organization_id = account.organization.id
    eventually(lambda: held_nano(organization_id) == 0)
    eventually(lambda: snapshot.client().hkeys(credit.key(organization_id)) == ["available"])
    eventually(lambda: not snapshot.client().zcard(f"live:organization:{organization_id}"))
    assert account.copy_nano == account.balance_nano == settings.FREE_CREDIT_NANO


def test_a_daily_budget_survives_a_lost_valkey(account: Account) -> None:
    set_quota(account, "spend", "day", 30_000_000)
    set_quota(account, "requests", "day", 3)
    assert account.post("SAY: hi").status_code == 200
    assert account.post("SAY: hi").status_code == 200
    assert snapshot.client().delete(counters.key(account.organization.id))
    assert account.post("SAY: hi").status_code == 200
    refused = account.post("SAY: hi")
    assert refused.status_code == 429
    assert "3 requests per day" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) <= 120


# Losses ---------------------------------------------------------------------------------------------


def test_a_lost_copy_is_read_again_with_the_holds_of_running_calls(account: Account) -> None:
    make_dear_model("most-of-credit", settings.FREE_CREDIT_NANO * 6 // 10)
    body = account.chat("STALL:1 TOKENS:100", model="most-of-credit", stream=True, max_tokens=100)
    with account.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        snapshot.client().delete(credit.key(account.organization.id))
        refused = call_in_parallel(4, lambda: account.post("SAY: x", model="most-of-credit", max_tokens=100))
        assert statuses(refused) == {429: 4}
    assert account.record().status == "cancelled"
    account.assert_books_agree()


def test_a_refresh_beside_live_calls_changes_nothing_that_is_right(account: Account) -> None:
    stop = threading.Event()

    def refresh_all_the_time() -> None:
        try:
            while not stop.is_set():
                with contextlib.suppress(credit.RefreshContended):
                    assert credit.refresh(account.organization.id).available_nano <= settings.FREE_CREDIT_NANO
        finally:
            connection.close()

    assert account.post("SAY: first").status_code == 200
    refresher = threading.Thread(target=refresh_all_the_time)
    refresher.start()
    try:
        for _ in range(5):
            answers = call_in_parallel(8, lambda: account.post("SAY: some words here"))
            assert statuses(answers) == {200: 8}
    finally:
        stop.set()
        refresher.join()
    account.assert_books_agree()


def test_a_drifted_copy_is_repaired(account: Account) -> None:
    assert account.post("SAY: hi").status_code == 200
    eventually(lambda: account.copy_nano == account.balance_nano)
    snapshot.client().hincrby(credit.key(account.organization.id), "available", -12345)
    refresh_balances()
    account.assert_books_agree()


def test_a_killed_gateway_loses_no_record_and_no_cent(own_web: Callable[..., Web], engine: Engine) -> None:
    web = own_web()
    account = make_account(web)
    set_quota(account, "concurrency", "now", 8)

    # A record is written before the engine hears of the call: only what has got a word is sure to have cost something.
    begun = threading.Semaphore(0)
    body = account.chat("PACE:5 TOKENS:2000", stream=True)

    def stream() -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            account.http.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            await_word(lines)
            begun.release()
            list(lines)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(stream)
        try:
            for _ in range(4):
                assert begun.acquire(timeout=PATIENCE_S)
        finally:
            web.kill()
    assert [record.status for record in account.records()] == ["started"] * 4

    pull_receipts(account, engine)
    refresh_balances()
    assert all(record.cost_nano > 0 for record in account.records())
    account.assert_books_agree()

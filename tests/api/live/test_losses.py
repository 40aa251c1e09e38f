"""Valkey and a gateway killed under load: what they forgot is found again, nothing is free, nobody stays locked out."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import redis
from django.conf import settings

from api import counters, credit
from api.counters import AppliedLimit, KeyLimits, Planner
from api.tasks import refresh_balances
from config.local.program import free_port
from config.local.valkey import EmbeddedValkey
from portal.api_keys.selectors import find_active
from portal.quotas import snapshot
from portal.quotas.use import used_in
from tests.api.live.service import MODEL, PATIENCE_S, Account, Engine, Web, eventually, make_account, pull_receipts
from tests.api.live.test_limits import set_limit

CALLERS = 4
REQUESTS = 100


class OwnValkey:
    """A Valkey of one test, which can be killed; durable as the product's own, or with nothing kept."""

    def __init__(self, folder: Path, *, is_durable: bool) -> None:
        self.server = EmbeddedValkey(folder, free_port(), is_durable=is_durable)
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = self.server.program
        program.prepare()
        self.popen = subprocess.Popen(program.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(program.is_ready)

    def kill(self) -> None:
        assert self.popen is not None
        self.popen.kill()
        self.popen.wait(PATIENCE_S)


@pytest.fixture
def own_valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., OwnValkey]]:
    """Starts it, and makes this process use it too."""
    started: list[OwnValkey] = []

    def start(*, is_durable: bool) -> OwnValkey:
        valkey = OwnValkey(tmp_path / "valkey", is_durable=is_durable)
        valkey.start()
        monkeypatch.setattr(settings, "VALKEY_URL", valkey.server.url)
        snapshot.client.cache_clear()
        started.append(valkey)
        return valkey

    yield start
    for valkey in started:
        valkey.kill()
    snapshot.client.cache_clear()


@dataclass
class Calls:
    """Status codes of calls that have ended, all counted and the latest of each caller; a broken call is 0."""

    codes: Counter[int] = field(default_factory=Counter)
    latest: dict[int, int] = field(default_factory=dict)


@contextmanager
def callers(account: Account, prompt: str, **fields: Any) -> Iterator[Calls]:
    """`CALLERS` threads that call all the time; at the end they leave the streams that they read."""
    calls = Calls()
    done = threading.Event()
    body = account.chat(prompt, **fields)

    def call(caller: int) -> None:
        with httpx.Client(headers={"authorization": f"Bearer {account.secret}"}, timeout=PATIENCE_S) as client:
            while not done.is_set():
                try:
                    with client.stream("POST", f"{account.web.url}/v1/chat/completions", json=body) as answer:
                        for _ in answer.iter_lines():
                            if done.is_set():
                                break
                    code = answer.status_code
                except httpx.HTTPError:
                    code = 0
                calls.latest[caller] = code
                calls.codes[code] += 1
                time.sleep(0.01)

    with ThreadPoolExecutor(CALLERS) as pool:
        running: list[Future[None]] = [pool.submit(call, caller) for caller in range(CALLERS)]
        try:
            yield calls
        finally:
            done.set()
    for each in running:
        each.result()


def windows(account: Account) -> list[AppliedLimit]:
    found = find_active(account.api_key.digest)
    assert found is not None
    plan = Planner(snapshot.load(account.organization.id)).plan(
        project_id=account.project.id,
        key=KeyLimits(found.limits),
        user_id=account.api_key.created_by_id,
        model=MODEL,
        now=datetime.now(UTC),
    )
    return [limit for limit in plan.limits if limit.form == "window"]


def counted(account: Account, limit: AppliedLimit) -> int | None:
    """What Valkey says is used of a window."""
    with redis.Redis.from_url(settings.VALKEY_URL) as raw:
        packed = raw.hget(counters.key(account.organization.id), limit.scope) or b""
    slots = counters.read(packed)
    return int(slots[limit.counter]) if limit.counter in slots else None


def recorded(account: Account, limit: AppliedLimit) -> int:
    """What the records say is used of it."""
    assert limit.window_start is not None
    assert limit.window_end is not None
    percent = settings.CACHED_TOKEN_LIMIT_PERCENT
    return used_in(account.organization.id, limit.quota, limit.window_start, limit.window_end, percent)


def counters_agree(account: Account) -> bool:
    return all(counted(account, limit) == recorded(account, limit) for limit in windows(account))


@pytest.mark.parametrize("is_durable", [True, False], ids=["its file is there", "it forgot everything"])
def test_a_valkey_that_is_killed_under_load_comes_back_with_the_truth(
    own_valkey: Callable[..., OwnValkey], own_web: Callable[..., Web], is_durable: bool
) -> None:
    valkey = own_valkey(is_durable=is_durable)
    account = make_account(own_web(VALKEY_URL=valkey.server.url))
    set_limit(account, "requests", "day", REQUESTS)
    set_limit(account, "tokens", "month", 10_000_000, project=account.project)
    set_limit(account, "spend", "lifetime", 10**12, api_key=account.api_key)
    set_limit(account, "concurrency", "now", 3 * CALLERS)
    with callers(account, "PACE:50 TOKENS:3", max_tokens=50) as calls:
        codes = calls.codes
        eventually(lambda: codes[200] >= 8)
        valkey.kill()
        # It fails closed: what was under way ends well, and then nothing is served.
        eventually(lambda: set(calls.latest.values()) == {503})
        served = codes[200]
        eventually(lambda: codes[503] >= 3 * CALLERS)
        assert codes[200] == served
        valkey.start()
        # Nobody is locked out, and the day's limit knows of the calls before.
        eventually(lambda: codes[200] >= served + 4)
        eventually(lambda: codes[429] >= 1)
    assert set(codes) <= {200, 429, 503}
    eventually(lambda: all(record.status != "started" for record in account.records()))
    # Those that ran while an empty Valkey was loaded are added when they end.
    assert REQUESTS - CALLERS <= codes[200] <= REQUESTS + (0 if is_durable else CALLERS)
    eventually(lambda: repaired(account))
    account.assert_books_agree()
    assert not snapshot.client().zcard(f"live:organization:{account.organization.id}")
    assert set(snapshot.client().hkeys(credit.key(account.organization.id))) == {"available"}


@pytest.mark.parametrize("dies", [False, True], ids=["its gateway lives", "its gateway dies too"])
def test_calls_that_run_when_valkey_forgets_everything_are_counted_at_once(
    own_valkey: Callable[..., OwnValkey], own_web: Callable[..., Web], engine: Engine, dies: bool
) -> None:
    """From their opening rows, as they reserved; and given back when they end, by whoever ends them."""
    valkey = own_valkey(is_durable=False)
    account = make_account(own_web(VALKEY_URL=valkey.server.url))
    survivor = replace(account, web=own_web(VALKEY_URL=valkey.server.url))
    set_limit(account, "requests", "day", 10**6)
    set_limit(account, "output_tokens", "day", 10_000)
    set_limit(account, "tokens", "month", 10**6, project=account.project)
    set_limit(account, "spend", "lifetime", 10**12, api_key=account.api_key)
    with callers(account, "PACE:2 TOKENS:600", stream=True, max_tokens=2_000):
        eventually(lambda: under_way(account) == CALLERS)
        before = {limit.counter: counted(account, limit) for limit in windows(account)}
        valkey.kill()
        valkey.start()
        # Four times 2,000 are reserved: 3,000 more have no room, with the first call that is answered at all.
        answers = iter(lambda: survivor.post("SAY: hi", max_tokens=3_000).status_code, 200)
        assert next(status for status in answers if status != 503) == 429
        assert under_way(account) == CALLERS
        assert {limit.counter: counted(account, limit) for limit in windows(account)} == before
        if dies:
            account.web.kill()
            pull_receipts(account, engine)
    eventually(lambda: all(record.status != "started" for record in account.records()))
    eventually(lambda: repaired(account) if dies else counters_agree(account))
    assert survivor.post("SAY: hi", max_tokens=3_000).status_code == 200
    eventually(lambda: counters_agree(account))
    survivor.assert_books_agree()


def test_what_is_loaded_again_is_what_was_counted(web: Web) -> None:
    """After calls that ended in every way: the counters as they stand, and as PostgreSQL tells them."""
    account = make_account(web)
    for kind in ("requests", "tokens", "input_tokens", "output_tokens"):
        set_limit(account, kind, "day", 10**6)
    set_limit(account, "spend", "month", 10**12, project=account.project)
    assert account.post("CACHED:4 TOKENS:7", max_tokens=50).status_code == 200
    assert account.post("FAIL:device_fault").status_code >= 500
    broken = account.post("TOKENS:50 FAIL:device_fault@10", stream=True, max_tokens=60)
    assert "error" in broken.text
    long = account.chat("TOKENS:500 STALL:1", stream=True)
    with account.http.stream("POST", "/v1/chat/completions", json=long) as answer:
        next(answer.iter_lines())
    eventually(lambda: {record.status for record in account.records()} == {"completed", "cancelled", "failed"})
    assert any(record.completion_tokens for record in account.records() if record.status == "failed")
    eventually(lambda: counters_agree(account))
    before = [counted(account, limit) for limit in windows(account)]
    assert all(before)
    snapshot.client().delete(counters.key(account.organization.id))
    # One more call has them loaded: it adds the same to both.
    assert account.post("TOKENS:7", max_tokens=50).status_code == 200
    eventually(lambda: counters_agree(account))
    requests, tokens, *_ = [counted(account, limit) for limit in windows(account)]
    assert (requests, tokens) > (before[0], before[1])


def under_way(account: Account) -> int:
    return sum(record.status == "started" for record in account.records())


def repaired(account: Account) -> bool:
    refresh_balances()
    return counters_agree(account)


def test_a_gateway_that_is_killed_under_load_leaves_nothing_held(own_web: Callable[..., Web], engine: Engine) -> None:
    """Leases run out; holds, and what was reserved of limits, follow the records, which receipts finish."""
    account = make_account(own_web())
    survivor = Account(account.organization, account.project, account.secret, own_web(), account.api_key)
    set_limit(account, "concurrency", "now", CALLERS)
    set_limit(account, "output_tokens", "day", 10_000)
    set_limit(account, "tokens", "minute", 100_000, project=account.project)
    set_limit(account, "spend", "lifetime", 10**12, api_key=account.api_key)
    with callers(account, "PACE:2 TOKENS:600", stream=True, max_tokens=2_000):
        eventually(lambda: under_way(account) == CALLERS)
        # Four times 2,000 are reserved: 3,000 more have no room.
        assert survivor.post("SAY: hi", max_tokens=3_000).status_code == 429
        account.web.kill()
    lease_key = f"live:organization:{account.organization.id}"
    leases = snapshot.client().zrange(lease_key, 0, -1, withscores=True)
    assert len(leases) == CALLERS
    # Nobody renews them: all are over a minute after the last renewal. Here a minute passes at once.
    assert all(expiry <= (time.time() + 60) * 1000 for _, expiry in leases)
    for name, _ in leases:
        snapshot.client().zincrby(lease_key, -61_000, name)

    pull_receipts(account, engine)
    eventually(lambda: repaired(account))
    account.assert_books_agree()
    assert survivor.post("SAY: hi", max_tokens=3_000).status_code == 200
    eventually(lambda: counters_agree(account))
    assert not snapshot.client().zcard(lease_key)
    survivor.assert_books_agree()

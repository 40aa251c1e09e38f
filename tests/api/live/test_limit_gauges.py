"""The limits page's gauges follow what the gateways serve."""

from __future__ import annotations

from portal.quotas.selectors import quotas_of
from portal.quotas.use import uses_of
from tests.api.live.service import Account, eventually, set_limit


def gauge(account: Account, quota_id: int) -> int | None:
    uses = uses_of(account.organization, quotas_of(account.organization), cached_percent=100)
    return next(use.used for use in uses if use.quota.id == quota_id)


def test_the_last_minute_and_calls_under_way_are_shown(account: Account) -> None:
    requests = set_limit(account, "requests", "minute", 6).id
    output = set_limit(account, "output_tokens", "minute", 100_000, api_key=account.api_key).id
    day = set_limit(account, "requests", "day", 10, model="another-model").id
    concurrency = set_limit(account, "concurrency", "now", 3).id
    assert [gauge(account, each) for each in (requests, output, day, concurrency)] == [0, 0, 0, 0]
    assert account.post("TOKENS:50", max_tokens=400).status_code == 200
    eventually(lambda: gauge(account, requests) == 1)
    assert [gauge(account, each) for each in (output, day)] == [50, 0]
    slow = account.chat("TOKENS:300 STALL:1", stream=True)
    with account.http.stream("POST", "/v1/chat/completions", json=slow) as answer:
        assert answer.status_code == 200, answer.read()
        eventually(lambda: gauge(account, concurrency) == 1)
    eventually(lambda: gauge(account, concurrency) == 0)

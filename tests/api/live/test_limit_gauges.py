"""The limits page's gauges follow what the gateways serve."""

from __future__ import annotations

from typing import Any

from portal.quotas import snapshot
from portal.quotas.models import QuotaKind, Window
from portal.quotas.selectors import quotas_of
from portal.quotas.services import change_quota
from portal.quotas.use import uses_of
from tests.api.live.service import Account, eventually


def limit(account: Account, kind: str, window: str, most: int, **scope: Any) -> int:
    quota = change_quota(
        organization=account.organization,
        kind=QuotaKind(kind),
        window=Window(window),
        limit=most,
        actor=account.api_key.created_by,
        **scope,
    )
    assert quota is not None
    snapshot.publish(account.organization.id)
    return quota.id


def gauge(account: Account, quota_id: int) -> int | None:
    uses = uses_of(account.organization, quotas_of(account.organization), cached_percent=100)
    return next(use.used for use in uses if use.quota.id == quota_id)


def test_the_last_minute_and_calls_under_way_are_shown(account: Account) -> None:
    requests = limit(account, "requests", "minute", 6)
    output = limit(account, "output_tokens", "minute", 100_000, api_key=account.api_key)
    day = limit(account, "requests", "day", 10, model="another-model")
    concurrency = limit(account, "concurrency", "now", 3)
    assert [gauge(account, each) for each in (requests, output, day, concurrency)] == [0, 0, 0, 0]
    assert account.post("TOKENS:50", max_tokens=400).status_code == 200
    eventually(lambda: gauge(account, requests) == 1)
    assert [gauge(account, each) for each in (output, day)] == [50, 0]
    slow = account.chat("TOKENS:300 PACE:100", stream=True)
    with account.http.stream("POST", "/v1/chat/completions", json=slow) as answer:
        assert answer.status_code == 200, answer.read()
        eventually(lambda: gauge(account, concurrency) == 1)
    eventually(lambda: gauge(account, concurrency) == 0)

"""What a gateway read while a change was announced is used once and not kept: it may be older than the change."""

from __future__ import annotations

import re
from dataclasses import replace
from uuid import uuid4

import pytest

from api import admission, auth
from api.admission import Admission, Demand
from api.auth import Caller, Keys
from api.errors import TAKES_NO_CALLS, ApiError
from api.valkey import Valkey
from portal.api_keys import secrets
from portal.api_keys.selectors import ActiveKey
from portal.quotas.snapshot import Limits, QuotaLimit

KEY = ActiveKey(7, "laptop", "sk-tf-abcd", 1, 3, None, "looms", organization_suspended=False, created_by_id=5)


async def test_a_key_whose_change_is_announced_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(lambda: True)
    secret = secrets.generate()
    found = [KEY, replace(KEY, limits=(QuotaLimit(9, "api_key", 7, "laptop", "", "hard", "requests", "day", 1),))]

    def read(digest: str) -> ActiveKey:
        key = found.pop(0)
        if found:
            keys.forget(digest)
        return key

    async def limits() -> list[int]:
        caller = await keys.authenticate({}, {b"authorization": f"Bearer {secret}".encode()}, "openai")
        return [quota.id for quota in caller.limits.quotas]

    monkeypatch.setattr(auth, "find_active", read)
    assert [await limits() for _ in range(3)] == [[], [9], [9]]
    assert not found


async def test_limits_whose_change_is_announced_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a suspended organization a call ends once its limits are read; Valkey is not asked.
    subject = Admission(Valkey("redis://127.0.0.1:1"), lambda: True)
    reads = 0

    def read(organization_id: int) -> Limits:
        nonlocal reads
        reads += 1
        if reads == 1:
            subject.forget_limits(organization_id)
        return Limits(organization_id, True, "UTC", ())

    monkeypatch.setattr(admission.snapshot, "read", read)
    for expected in (1, 2, 2):
        with pytest.raises(ApiError, match=re.escape(TAKES_NO_CALLS)):
            await subject.reserve(Caller(1, 3, 7, "looms", 5), uuid4(), Demand("m", 1, 1, 1, "USD"))
        assert reads == expected

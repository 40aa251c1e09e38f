"""Limits of every scope, kind, window and mode, over HTTP: what a refusal says, and what only counts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from api import credit
from billing.ledger.selectors import held_nano
from portal.alerts import evaluation
from portal.alerts.models import Alert, AlertRule
from portal.api_keys.services import issue, revoke
from portal.catalog.models import Deployment
from portal.organizations.models import Member
from portal.quotas import snapshot
from portal.quotas.models import Mode, Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.api.live.service import MODEL, SOON_S, Account, Web, eventually, make_model, set_limit


@pytest.mark.parametrize("kind", ["input_tokens", "output_tokens"])
def test_input_and_output_have_limits_of_their_own(account: Account, kind: str) -> None:
    set_limit(account, kind, "minute", 20)
    # A first call that is larger than the limit overdraws it: there is room again after some minutes.
    served = account.post("word " * 400 + "TOKENS:100", max_tokens=100)
    assert served.status_code == 200
    assert "x-ratelimit-limit-tokens" not in served.headers
    refused = account.post("TOKENS:5", max_tokens=5)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
    assert f"20 {kind.replace('_', ' ')} per minute of this organization" in error["message"]


def test_a_limit_of_one_model_leaves_the_others_alone(account: Account) -> None:
    other = make_model("limited-model", _address())
    set_limit(account, "requests", "day", 1, model=other.name)
    assert account.post("SAY: hi", model=other.name).status_code == 200
    refused = account.post("SAY: hi", model=other.name)
    assert refused.status_code == 429
    assert "for the model 'limited-model'" in refused.json()["error"]["message"]
    assert account.post("SAY: hi").status_code == 200


def test_a_members_limit_counts_the_keys_that_the_member_made(account: Account) -> None:
    member = Member.objects.get(user=account.api_key.created_by, organization=account.organization)
    set_limit(account, "requests", "day", 1, member=member)
    assert account.post("SAY: hi").status_code == 200
    refused = account.post("SAY: hi")
    assert refused.status_code == 429
    message = refused.json()["error"]["message"]
    assert f"of this member '{account.api_key.created_by.email}'" in message
    page = settings.PUBLIC_URL + reverse("portal:limits", args=[account.organization.slug])
    assert f"{page}." in message
    assert {name: refused.headers.get(f"x-limit-{name}") for name in ("kind", "window", "scope", "value", "page")} == {
        "kind": "requests",
        "window": "day",
        "scope": f"member:{member.user_id}",
        "value": "1",
        "page": page,
    }
    assert refused.headers["x-limit-remaining"] == "0"
    assert datetime.fromisoformat(refused.headers["x-limit-reset"]) > timezone.now()


def test_a_keys_own_limit_holds_that_key_alone(account: Account) -> None:
    other = issue(project=account.project, name="other", actor=account.api_key.created_by)
    set_limit(account, "requests", "day", 2)
    set_limit(account, "requests", "day", 1, api_key=account.api_key)
    assert account.post("SAY: hi").status_code == 200
    refused = account.post("SAY: hi")
    assert refused.status_code == 429
    assert f"of this API key '{account.api_key.name}'" in refused.json()["error"]["message"]
    assert replace(account, secret=other.secret).post("SAY: hi").status_code == 200
    # Valkey forgets everything: the limits are read again, each from where it is kept, and what was used of them.
    snapshot.client().flushdb()
    assert account.post("SAY: hi").headers["x-limit-scope"] == f"organization:{account.organization.id}"
    set_limit(account, "requests", "day", 9)
    eventually(lambda: account.post("SAY: hi").headers["x-limit-scope"] == f"api_key:{account.api_key.id}")
    assert replace(account, secret=other.secret).post("SAY: hi").status_code == 200


def test_a_refusal_by_a_templates_limit_says_that_the_operator_set_it(account: Account) -> None:
    quota = set_limit(account, "requests", "day", 1)
    Quota.objects.filter(id=quota.id).update(is_imposed=True)
    snapshot.publish(account.organization.id)
    # The gateway hears of the limit's new form.
    eventually(lambda: "The operator of this service set it" in account.post("SAY: hi").text)
    message = account.post("SAY: hi").json()["error"]["message"]
    assert "An admin changes it" not in message


@pytest.mark.parametrize(("kind", "window"), [("requests", "minute"), ("tokens", "day"), ("concurrency", "now")])
def test_a_limit_of_0_promises_no_room(account: Account, kind: str, window: str) -> None:
    set_limit(account, kind, window, 0)
    eventually(lambda: account.post("SAY: hi").status_code == 429)
    answer = account.post("SAY: hi")
    message = answer.json()["error"]["message"]
    assert "of this organization through. An admin changes it at" in message
    assert not {"x-limit-reset", "retry-after"} & set(answer.headers)


@pytest.mark.parametrize(("window", "word"), [("week", "per week"), ("lifetime", "in all")])
def test_spend_is_limited_over_a_week_and_over_a_lifetime(account: Account, window: str, word: str) -> None:
    set_limit(account, "spend", window, 50_000)
    assert account.post("SAY: hi", max_tokens=10_000).json()["error"]["code"] == "insufficient_quota"
    message = account.post("SAY: hi", max_tokens=10_000).json()["error"]["message"]
    assert f"The limit of $0.00005 spend {word} of this organization" in message
    assert ("room again" in message) == (window == "week")
    headers = account.post("SAY: hi", max_tokens=10_000).headers
    assert (headers["x-limit-value"], headers["x-limit-window"]) == ("0.00005", window)
    assert ("x-limit-reset" in headers) == (window == "week")


def test_a_shadow_limit_refuses_nothing_and_hides_from_headers(account: Account) -> None:
    set_limit(account, "requests", "minute", 1, mode=Mode.SHADOW)
    set_limit(account, "concurrency", "now", 0, mode=Mode.SHADOW)
    set_limit(account, "tokens", "day", 0, mode=Mode.SHADOW)
    for _ in range(3):
        answer = account.post("SAY: hi")
        assert answer.status_code == 200
        assert "x-ratelimit-limit-requests" not in answer.headers
    assert not snapshot.take_exceeded(account.organization.id)
    assert not AlertRule.objects.filter(organization=account.organization).exists()


def test_a_soft_limit_lets_through_and_alerts_once_in_its_window(account: Account) -> None:
    quota = set_limit(account, "requests", "day", 1, mode=Mode.SOFT)
    for _ in range(3):
        assert account.post("SAY: hi").status_code == 200
    evaluation.evaluate_all(now=timezone.now())
    (alert,) = Alert.objects.filter(organization=account.organization)
    assert (alert.threshold, alert.facts["calls"]) == (quota.id, 2)
    assert account.post("SAY: hi").status_code == 200
    evaluation.evaluate_all(now=timezone.now() + timedelta(minutes=1))
    assert Alert.objects.filter(organization=account.organization).count() == 1


def test_no_mix_of_parallel_calls_overspends_or_leaks(account: Account) -> None:
    """Answers, failures and hang-ups at once, beside limits of each form; then nothing is held and the books agree."""
    set_limit(account, "concurrency", "now", 8)
    set_limit(account, "tokens", "minute", 1_000_000)
    set_limit(account, "spend", "day", 2_000_000_000)
    draw = random.Random(7)
    prompts = [draw.choice(["SAY: hi", "FAIL:engine_error", "PACE:50 TOKENS:10", "hang up"]) for _ in range(50)]

    def call(prompt: str) -> int:
        if prompt != "hang up":
            return account.post(prompt, max_tokens=50).status_code
        body = account.chat("PACE:20 TOKENS:100", stream=True, max_tokens=100)
        with account.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
            return answer.status_code

    with ThreadPoolExecutor(16) as pool:
        codes = list(pool.map(call, prompts))
    assert set(codes) <= {200, 429, 500}
    assert 200 in codes
    organization_id = account.organization.id
    eventually(lambda: held_nano(organization_id) == 0)
    eventually(lambda: snapshot.client().hkeys(credit.key(organization_id)) == ["available"])
    eventually(lambda: not snapshot.client().zcard(f"live:organization:{organization_id}"))
    account.assert_books_agree()


def test_a_change_and_a_revoke_hold_on_every_gateway_soon(account: Account, own_web: Callable[..., Web]) -> None:
    both = [account, replace(account, web=own_web())]
    done = threading.Event()

    def load(through: Account) -> None:
        while not done.is_set():
            through.post("SAY: hi")

    def own_limit(limit: int | None) -> None:
        change_quota(
            organization=account.organization,
            kind=QuotaKind.REQUESTS,
            window=Window.DAY,
            limit=limit,
            actor=account.api_key.created_by,
            api_key=account.api_key,
        )

    delays_ms: dict[str, list[int]] = {}

    def delay_until(status: int, what: str, change: Callable[[], object]) -> None:
        """Both gateways are asked at once: from the commit of the change until each refuses."""
        change()
        started = time.monotonic()

        def ask(through: Account) -> int:
            eventually(lambda: through.post("SAY: hi").status_code == status, patience_s=SOON_S)
            return round(1000 * (time.monotonic() - started))

        delays_ms[what] = list(pool.map(ask, both))

    with ThreadPoolExecutor(6) as pool:
        for through in both * 2:
            pool.submit(load, through)
        try:
            for through in both:
                assert through.post("SAY: hi").status_code == 200
            delay_until(429, "key's own quota changed", lambda: own_limit(0))
            delay_until(200, "key's own quota removed", lambda: own_limit(None))
            delay_until(429, "quota changed", lambda: set_limit(account, "requests", "day", 0))
            delay_until(401, "key revoked", lambda: revoke(api_key=account.api_key, actor=account.api_key.created_by))
        finally:
            done.set()
    print(f"Delay on two gateways under load, ms: {delays_ms}")


def _address() -> str:
    return Deployment.objects.get(model__name=MODEL).address

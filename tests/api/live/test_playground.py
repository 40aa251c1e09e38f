"""The portal's own calls: a session and a CSRF token instead of a key, charged to the member's project."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from django.conf import settings
from django.test import Client

from portal.organizations.models import Member
from tests.api.live.service import PATIENCE_S, Account, make_account
from tests.factories.portal import make_user

TOKEN = "a" * 32
URL = "/portal-api/chat/completions"


def browser(account: Account, user: Any) -> httpx.Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    cookies = {
        settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value,
        settings.CSRF_COOKIE_NAME: TOKEN,
    }
    return httpx.Client(base_url=account.web.url, cookies=cookies, headers={"x-csrftoken": TOKEN}, timeout=PATIENCE_S)


@pytest.fixture
def owner(account: Account) -> Any:
    return Member.objects.get(organization=account.organization).user


def body_of(account: Account, **fields: Any) -> dict[str, Any]:
    project = {"organization": account.organization.slug, "project": account.project.slug}
    return account.chat("SAY: hello", stream=True, project=project, **fields)


def test_a_member_streams_and_the_project_is_charged(account: Account, owner: Any) -> None:
    answer = browser(account, owner).post(URL, json=body_of(account))
    assert answer.status_code == 200
    assert "data: [DONE]" in answer.text
    record = account.record()
    assert record.project_id == account.project.id
    assert record.api_key_id != account.api_key.id
    account.assert_books_agree()


def test_without_the_token_or_the_session_nothing_runs(account: Account, owner: Any) -> None:
    client = browser(account, owner)
    assert client.post(URL, json=body_of(account), headers={"x-csrftoken": "b" * 32}).status_code == 403
    stranger = httpx.post(f"{account.web.url}{URL}", json=body_of(account), timeout=PATIENCE_S)
    assert stranger.status_code == 401
    assert account.records() == []


def test_an_outsider_finds_no_project(account: Account) -> None:
    outsider = make_user(f"cyd-{account.organization.id}")
    answer = browser(account, outsider).post(URL, json=body_of(account))
    assert answer.status_code == 404
    other = make_account(account.web)
    member = Member.objects.get(organization=other.organization).user
    assert browser(account, member).post(URL, json=body_of(account)).status_code == 404
    assert account.records() == []


def test_the_project_must_be_named(account: Account, owner: Any) -> None:
    answer = browser(account, owner).post(URL, json=account.chat("SAY: hi"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "project"

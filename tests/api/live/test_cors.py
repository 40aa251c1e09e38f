"""Calls from web pages: what a browser is told, and how soon a change of the list is in force."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from portal.organizations.services import change_allowed_origins
from tests.api.live.service import MODEL, Account, eventually, make_account
from tests.factories.portal import make_user

PATHS = [
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/messages", "POST"),
    ("/v1/embeddings", "POST"),
    ("/v1/messages/count_tokens", "POST"),
    ("/v1/responses/resp_1", "DELETE"),
    ("/v1/models", "GET"),
    ("/v1/models/m", "GET"),
]


def preflight(account: Account, origin: str, path: str = "/v1/chat/completions", method: str = "POST") -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-os,x-evil",
    }
    return account.http.request("OPTIONS", path, headers={**headers, "authorization": ""})


def allow(account: Account, *origins: str) -> None:
    change_allowed_origins(
        organization=account.organization, origins=list(origins), actor=make_user(f"e-{uuid.uuid4().hex[:8]}")
    )


def fresh_origin() -> str:
    return f"https://{uuid.uuid4().hex[:12]}.example"


def test_nothing_is_allowed_by_default(account: Account) -> None:
    origin = fresh_origin()
    answer = preflight(account, origin)
    assert answer.status_code == 204
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Origin, Access-Control-Request-Headers"
    answer = account.http.post("/v1/chat/completions", json=account.chat("SAY: hi"), headers={"origin": origin})
    assert answer.status_code == 200
    assert answer.headers["vary"] == "Origin"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("path", "method"), PATHS)
def test_a_preflight_needs_no_key_and_names_what_may_be_sent(account: Account, path: str, method: str) -> None:
    origin = fresh_origin()
    allow(account, origin)
    answer = eventually(
        lambda: (
            found
            if "access-control-allow-origin" in (found := preflight(account, origin, path, method)).headers
            else None
        )
    )
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
    assert "access-control-allow-credentials" not in answer.headers


def test_only_the_organization_of_the_key_decides_about_the_answer(account: Account) -> None:
    origin = fresh_origin()
    other = make_account(account.web)
    allow(account, origin)

    def headers_for(whose: Account, **more: Any) -> Any:
        return whose.http.post(
            "/v1/chat/completions", json=whose.chat("SAY: hi", **more), headers={"origin": origin}
        ).headers

    assert eventually(lambda: headers_for(account).get("access-control-allow-origin")) == origin
    exposed = headers_for(account, stream=True)["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(exposed)
    # The preflight of that origin passes, the answer to another organization's key cannot be read all the same.
    assert eventually(lambda: preflight(other, origin).headers.get("access-control-allow-origin")) == origin
    assert "access-control-allow-origin" not in headers_for(other)
    # Refusals are read by the page too, where the key is known.
    refused = account.http.post("/v1/messages", json={"model": MODEL}, headers={"origin": origin})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, origin)
    listed = account.http.get("/v1/models", headers={"origin": origin})
    assert listed.headers["access-control-allow-origin"] == origin
    unknown = account.http.get("/v1/models", headers={"origin": origin, "authorization": "Bearer sk-tf-wrong"})
    assert unknown.status_code == 401
    assert "access-control-allow-origin" not in unknown.headers


def test_a_removed_origin_is_out_within_seconds_on_every_gateway(account: Account, own_web: Any) -> None:
    origin = fresh_origin()
    second = Account(account.organization, account.project, account.secret, own_web())
    allow(account, origin)

    def may_read(whose: Account) -> bool:
        answer = whose.http.get("/v1/models", headers={"origin": origin})
        return answer.headers.get("access-control-allow-origin") == origin

    for whose in (account, second):
        assert eventually(lambda whose=whose: may_read(whose))
    allow(account)
    for whose in (account, second):
        assert eventually(lambda whose=whose: not may_read(whose))
        assert eventually(lambda whose=whose: "access-control-allow-origin" not in preflight(whose, origin).headers)

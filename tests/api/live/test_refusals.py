"""Every refusal is JSON in the dialect of its route, says what is wrong, and costs nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx2 as httpx
import openai
import pytest
from django.utils import timezone

from api.routing import INFERENCE
from billing.ledger.models import OrganizationBalance
from portal.api_keys.secrets import generate
from portal.api_keys.services import issue, revoke
from portal.catalog.models import Deployment
from portal.catalog.services import change_price
from portal.organizations.services import archive_project, create_project, restore_project, set_suspended
from portal.quotas import snapshot
from tests.api.live.service import MODEL, PATIENCE_S, SOON_S, Account, Web, eventually, make_model
from tests.factories.portal import make_user


def assert_openai(answer: httpx.Response, status: int, code: str | None, param: str | None = None) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    return str(error["message"])


def assert_anthropic(answer: httpx.Response, status: int, type: str) -> str:
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", type)
    assert body["request_id"] == answer.headers["request-id"]
    return str(body["error"]["message"])


@pytest.mark.parametrize("secret", ["sk-tf-wrong", generate(), "token-1234567890abcdef"])
def test_a_wrong_key_is_refused_without_an_echo(account: Account, secret: str) -> None:
    headers = {"authorization": f"Bearer {secret}"}
    answer = account.http.post("/v1/chat/completions", json=account.chat("x"), headers=headers)
    message = assert_openai(answer, 401, "invalid_api_key")
    assert secret not in answer.text
    assert secret[-6:] not in message
    assert answer.headers["www-authenticate"] == "Bearer"
    assert secret not in account.web.log.read_text()


def test_no_key_is_refused_in_each_dialect(web: Web) -> None:
    assert_openai(httpx.post(f"{web.url}/v1/chat/completions", json={}, timeout=PATIENCE_S), 401, None)
    assert_anthropic(httpx.post(f"{web.url}/v1/messages", json={}, timeout=PATIENCE_S), 401, "authentication_error")


def test_a_key_works_under_either_header(account: Account) -> None:
    headers = {"x-api-key": account.secret}
    answer = httpx.post(
        f"{account.web.url}/v1/chat/completions", json=account.chat("SAY: hi"), headers=headers, timeout=PATIENCE_S
    )
    assert answer.status_code == 200


def test_a_revoked_key_is_refused_everywhere_soon(account: Account, webs: Any) -> None:
    other = webs("uvicorn")
    headers = {"authorization": f"Bearer {account.secret}"}

    def statuses() -> list[int]:
        urls = [f"{web.url}/v1/models" for web in (account.web, other)]
        return [httpx.get(url, headers=headers, timeout=PATIENCE_S).status_code for url in urls]

    assert statuses() == [200, 200]
    revoke(api_key=account.api_key, actor=None)
    eventually(lambda: statuses() == [401, 401], patience_s=SOON_S)


def test_keys_of_an_archived_project_are_refused_everywhere_until_it_is_restored(account: Account, webs: Any) -> None:
    actor = account.api_key.created_by
    project = create_project(organization=account.organization, name="Old", actor=actor)
    headers = {"authorization": f"Bearer {issue(project=project, name='old', actor=actor).secret}"}

    def answers() -> list[httpx.Response]:
        return [
            httpx.get(f"{web.url}/v1/models", headers=headers, timeout=PATIENCE_S)
            for web in (account.web, webs("uvicorn"))
        ]

    assert [answer.status_code for answer in answers()] == [200, 200]
    archive_project(project=project, actor=actor)
    eventually(lambda: [answer.status_code for answer in answers()] == [403, 403], patience_s=SOON_S)
    assert "archived project" in assert_openai(answers()[0], 403, "project_archived")
    assert account.http.get("/v1/models").status_code == 200
    restore_project(project=project, actor=actor)
    eventually(lambda: [answer.status_code for answer in answers()] == [200, 200], patience_s=SOON_S)


def test_an_expired_key_says_when_it_expired(account: Account) -> None:
    yesterday = timezone.now() - timedelta(days=1)
    old = issue(project=account.project, name="old", actor=None, expires_at=yesterday)
    answer = account.http.get("/v1/models", headers={"authorization": f"Bearer {old.secret}"})
    message = assert_openai(answer, 401, "expired_api_key")
    assert f"{yesterday:%Y-%m-%d}" in message


def test_a_suspended_organization_is_refused(account: Account) -> None:
    assert account.post("SAY: hi").status_code == 200
    operator = make_user(f"oda-{account.organization.id}", is_operator=True)
    set_suspended(organization=account.organization, is_suspended=True, actor=operator, reason="test")
    snapshot.publish(account.organization.id)
    answer = eventually(lambda: (a := account.post("SAY: hi")).status_code == 403 and a)
    assert_openai(answer, 403, "organization_suspended")


def test_an_unknown_model_is_named(account: Account) -> None:
    message = assert_openai(account.post("x", model="no-such-model"), 404, "model_not_found", "model")
    assert "no-such-model" in message


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": "warm"}, "invalid_type", "temperature"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "unsupported_value",
            "messages[0].content[0]",
        ),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_value", "max_tokens"),
        ({"n": 9}, "invalid_value", "n"),
        ({"stop": ["1", "2", "3", "4", "5"]}, "invalid_value", "stop"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"reasoning_effort": "heroic"}, "invalid_value", "reasoning_effort"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(account: Account, fields: dict[str, Any], code: str, param: str) -> None:
    assert_openai(account.post("x", **fields), 400, code, param)
    assert account.records() == []


@pytest.mark.parametrize("number", [2**31, 10**40, -1])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("chat/completions", "max_tokens"),
        ("chat/completions", "max_completion_tokens"),
        ("chat/completions", "top_k"),
        ("completions", "max_tokens"),
        ("completions", "top_k"),
        ("completions", "prompt[0]"),
        ("completions", "prompt[0][0]"),
        ("messages", "max_tokens"),
        ("messages", "top_k"),
        ("responses", "max_output_tokens"),
        ("embeddings", "dimensions"),
        ("embeddings", "input[0]"),
        ("embeddings", "input[0][0]"),
    ],
)
def test_a_number_beyond_what_engines_take_is_named(account: Account, path: str, field: str, number: int) -> None:
    messages = [{"role": "user", "content": "SAY: x"}]
    body: dict[str, Any] = {"model": MODEL, "messages": messages, "input": "x", "prompt": "x", "max_tokens": 5}
    name, depth = field.partition("[")[0], field.count("[")
    body[name] = [[number]] if depth == 2 else [number] if depth else number
    answer = account.http.post(f"/v1/{path}", json=body)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400, message
    assert "embeddings" not in message
    assert name in message or abs(number) > 2**64
    assert not account.records()


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_a_seed_has_64_bits(account: Account, seed: int) -> None:
    assert_openai(account.post("SAY: x", seed=seed), 400, "invalid_value", "seed")
    completion = account.http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "seed": seed})
    assert_openai(completion, 400, "invalid_value", "seed")
    assert account.post("SAY: x", seed=2**63 - 1).status_code == 200


def test_unknown_fields_pass(account: Account) -> None:
    assert account.post("SAY: hi", made_up_field={"a": 1}, top_k=5).status_code == 200


def test_a_body_that_is_not_json_is_refused(account: Account) -> None:
    answer = account.http.post("/v1/chat/completions", content=b"{nope")
    assert_openai(answer, 400, "invalid_json")
    compressed = account.http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert_openai(compressed, 400, "request_body_encoding_unsupported")


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(account: Account) -> None:
    answer = account.post("word " * 100, max_tokens=8190)
    message = assert_openai(answer, 400, "context_length_exceeded", "messages")
    assert "8190" in message
    assert "8192" in message
    # No limit given: what the context leaves is used.
    assert account.post("SAY: hi " + "word " * 7500).status_code == 200
    account.assert_books_agree()


def test_without_credit_the_balance_and_the_hold_are_named(account: Account) -> None:
    address = Deployment.objects.get(model__name=MODEL).address
    dear = make_model("dear-model", address, max_output_tokens=8000)
    prices = {"input_nano": 10**12, "cached_input_nano": None, "output_nano": 10**12}
    change_price(model=dear, **prices, effective_from=timezone.now(), actor=None)
    answer = account.post("x", model="dear-model", max_tokens=6000)
    message = assert_openai(answer, 429, "insufficient_quota")
    assert "$5.00" in message
    assert "would hold $" in message
    assert answer.headers["x-should-retry"] == "false"
    page = f"/o/{account.organization.slug}/billing/credit"
    assert page in message
    assert answer.headers["x-limit-page"].endswith(page)
    told = {name: answer.headers[f"x-limit-{name}"] for name in ("kind", "scope", "remaining")}
    assert told == {"kind": "credit", "scope": f"organization:{account.organization.id}", "remaining": "5"}
    anthropic = account.http.post(
        "/v1/messages",
        json={"model": "dear-model", "max_tokens": 6000, "messages": [{"role": "user", "content": "x"}]},
    )
    assert_anthropic(anthropic, 402, "billing_error")
    assert OrganizationBalance.objects.get(organization=account.organization).credit_nano == 5_000_000_000
    assert account.copy_nano == 5_000_000_000
    assert account.records() == []


@pytest.mark.parametrize("path", sorted(INFERENCE))
def test_no_path_runs_without_credit(account: Account, path: str) -> None:
    """Every path that generates, whatever its dialect; a new one is in this list by itself."""
    address = Deployment.objects.get(model__name=MODEL).address
    dear = make_model("dearest-model", address, max_output_tokens=8000)
    Deployment.objects.create(model=dear, address="http://127.0.0.1:9/v1", kind="openai_compatible", upstream_model="x")
    prices = {"input_nano": 10**16, "cached_input_nano": None, "output_nano": 10**16}
    change_price(model=dear, **prices, effective_from=timezone.now(), actor=None)
    messages = [{"role": "user", "content": "SAY: x"}]
    body = {"model": dear.name, "messages": messages, "input": "SAY: x"}
    if path == "/v1/messages":
        body["max_tokens"] = 100
    if path == "/v1/completions":
        body["prompt"] = "SAY: x"
    answer = eventually(
        lambda: found if (found := account.http.post(path, json=body)).status_code not in (400, 404) else None
    )
    if path.startswith("/v1/messages"):
        assert_anthropic(answer, 402, "billing_error")
    else:
        assert_openai(answer, 429, "insufficient_quota")
    assert account.records() == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("POST", "/v1/v1/chat/completions", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_supported"),
        ("DELETE", "/v1/models", 405, "method_not_supported"),
        ("POST", "/v1/models/", 404, "not_found"),
        ("POST", "/v1/openapi.json", 405, "method_not_supported"),
    ],
)
def test_unknown_paths_and_methods_are_json(account: Account, method: str, path: str, status: int, code: str) -> None:
    answer = account.http.request(method, path)
    assert_openai(answer, status, code)
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("GET", "/v1/chat/completions/chatcmpl-1", "/v1/responses"),
        ("DELETE", "/v1/chat/completions/chatcmpl-1", "/v1/responses"),
        ("GET", "/v1/chat/completions/chatcmpl-1/messages", "/v1/responses"),
        ("POST", "/v1/conversations", "previous_response_id"),
        ("POST", "/v1/messages/batches", "no batches"),
        ("POST", "/v1/batches", "no batches"),
        ("GET", "/v1/files", "not kept"),
        ("POST", "/v1/images/generations", "text only"),
        ("POST", "/v1/v1/chat/completions", "without /v1"),
    ],
)
def test_what_is_not_served_is_refused_with_what_to_do(account: Account, method: str, path: str, hint: str) -> None:
    answer = account.http.request(method, path)
    if path.startswith("/v1/messages"):
        message = assert_anthropic(answer, 404, "not_found_error")
    else:
        message = assert_openai(answer, 404, "not_found")
    assert hint in message


def test_a_chat_completion_is_not_kept(account: Account) -> None:
    """`store` is accepted as other compatible servers do, and keeps nothing."""
    made = account.client().chat.completions.create(**account.chat("SAY: hi"), store=True)
    with pytest.raises(openai.NotFoundError, match="responses are"):
        account.client().chat.completions.retrieve(made.id)
    listed = account.http.get("/v1/chat/completions")
    assert (listed.status_code, listed.headers["allow"]) == (405, "POST, OPTIONS")


def test_headers_of_agents_pass(each_account: Account) -> None:
    headers = {f"x-codex-turn-{number}": "x" * 6000 for number in range(5)}
    answer = each_account.http.post("/v1/chat/completions", json=each_account.chat("SAY: hi"), headers=headers)
    assert answer.status_code == 200


def test_errors_on_shared_paths_follow_the_headers(account: Account) -> None:
    answer = account.http.get("/v1/models/none", headers={"anthropic-version": "2023-06-01"})
    assert_anthropic(answer, 404, "not_found_error")
    assert_anthropic(account.http.get("/v1/messages/batches"), 404, "not_found_error")


def test_embeddings_are_refused_for_a_text_model(account: Account) -> None:
    answer = account.http.post("/v1/embeddings", json={"model": MODEL, "input": "x"})
    assert_openai(answer, 400, "unsupported_value", "model")


def test_query_strings_and_probes(account: Account) -> None:
    answer = account.http.post("/v1/chat/completions?beta=true", json=account.chat("SAY: hi"))
    assert answer.status_code == 200
    assert httpx.head(f"{account.web.url}/", timeout=PATIENCE_S).status_code == 200
    assert httpx.get(f"{account.web.url}/health", timeout=PATIENCE_S).json()["status"] == "ok"
    assert "access-control-allow-origin" not in account.http.options("/v1/chat/completions").headers


def test_a_body_over_the_limit_is_a_413(each_account: Account) -> None:
    account, long = each_account, "x" * 210_000
    assert_openai(account.post(long), 413, "request_too_large")
    body = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": long}]}
    assert_anthropic(account.http.post("/v1/messages", json=body), 413, "request_too_large")
    # Without a declared length, while it comes in.
    parts = (b"x" * 50_000 for _ in range(5))
    assert_openai(account.http.post("/v1/chat/completions", content=parts), 413, "request_too_large")
    assert account.post("SAY: hi").status_code == 200


def test_no_key_is_ever_logged(account: Account) -> None:
    account.post("SAY: hi")
    account.http.get("/v1/models", headers={"authorization": f"Bearer {account.secret}x"})
    text = account.web.log.read_text()
    assert account.secret not in text
    assert account.secret[-12:] not in text

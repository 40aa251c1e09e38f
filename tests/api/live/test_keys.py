"""What a key may do, how soon a change holds, and that no secret is left anywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from django.db import connection
from django.utils import timezone

from portal.api_keys import management, operator_keys, secrets, services
from portal.api_keys.services import KeyRules
from portal.organizations.models import Member
from portal.organizations.roles import Role
from portal.organizations.services import set_suspended
from tests.api.live.service import MODEL, PATIENCE_S, SOON_S, Account, Web, eventually, make_model
from tests.factories.portal import make_user, set_up_second_factor


def owner(account: Account) -> Any:
    return Member.objects.get(organization=account.organization).user


def restrict(account: Account, **rules: list[str]) -> None:
    services.change(
        api_key=account.api_key, name="test", expires_at=None, rules=KeyRules(**rules), actor=owner(account)
    )


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def soon(check: Callable[[], bool]) -> None:
    eventually(check, SOON_S)


class TestRules:
    def test_a_route_that_is_not_allowed_is_refused_before_the_body_is_read(self, account: Account) -> None:
        assert account.post("hi").status_code == 200
        restrict(account, routes=["messages"])
        soon(lambda: refusal(account.post("hi")) == (403, "route_not_allowed"))
        assert refusal(account.http.post("/v1/responses", content=b"{nonsense")) == (403, "route_not_allowed")
        message = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        assert account.http.post("/v1/messages", json=message).status_code == 200
        assert account.http.post("/v1/messages/count_tokens", json=message).status_code == 200
        assert account.http.get("/v1/models").status_code == 200

    def test_a_model_that_is_not_allowed_is_refused_and_not_listed(self, account: Account, web: Web) -> None:
        make_model("other-model", *[])
        restrict(account, models=["other-model"])
        soon(lambda: refusal(account.post("hi")) == (403, "model_not_allowed"))
        assert account.post("hi").json()["error"]["param"] == "model"
        assert MODEL not in [each["id"] for each in account.http.get("/v1/models").json()["data"]]
        assert account.http.get(f"/v1/models/{MODEL}").status_code == 403
        restrict(account)
        soon(lambda: account.post("hi").status_code == 200)

    def test_an_address_counts_behind_a_trusted_proxy_only(self, account: Account, own_web: Callable[..., Web]) -> None:
        restrict(account, networks=["203.0.113.0/24", "2001:db8::/32"])
        soon(lambda: refusal(account.post("hi")) == (403, "address_not_allowed"))
        assert "127.0.0.1" in account.post("hi").json()["error"]["message"]
        # Whoever is not behind a proxy of ours can claim what they like.
        forged = {"x-forwarded-for": "203.0.113.9"}
        body = account.chat("hi")
        assert account.http.post("/v1/chat/completions", json=body, headers=forged).status_code == 403
        behind = own_web(TRUSTED_PROXIES="127.0.0.0/8")
        for address, status in (
            ("203.0.113.9", 200),
            ("2001:db8::7", 200),
            ("198.51.100.1", 403),
            ("203.0.113.9, 198.51.100.1", 403),
            ("198.51.100.1, 203.0.113.9, 127.0.0.2", 200),
            ("nonsense", 403),
        ):
            headers = {"authorization": f"Bearer {account.secret}", "x-forwarded-for": address}
            answer = httpx.post(f"{behind.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)
            assert answer.status_code == status, address


class TestSoon:
    def test_a_revoked_key_and_its_older_secret_are_refused(self, account: Account) -> None:
        rotated = services.rotate(api_key=account.api_key, overlap=timedelta(hours=1), actor=owner(account))
        client = httpx.Client(
            base_url=account.web.url, headers={"authorization": f"Bearer {rotated.secret}"}, timeout=PATIENCE_S
        )
        assert (
            account.post("hi").status_code
            == client.post("/v1/chat/completions", json=account.chat("hi")).status_code
            == 200
        )
        eventually(lambda: len(account.records()) == 2)
        # The calls of both secrets are those of one key, with one budget.
        assert {row.api_key_id for row in account.records()} == {account.api_key.id}
        services.revoke(api_key=rotated.api_key, actor=owner(account))
        soon(lambda: account.post("hi").status_code == 401)
        soon(lambda: client.get("/v1/models").status_code == 401)

    def test_an_organization_is_suspended_and_resumed(self, account: Account) -> None:
        assert account.post("hi").status_code == 200
        for is_suspended, status in ((True, 403), (False, 200)):
            set_suspended(
                organization=account.organization, is_suspended=is_suspended, actor=owner(account), reason="test"
            )
            soon(lambda status=status: account.post("hi").status_code == status)  # type: ignore[misc]
            assert account.http.get("/v1/models").status_code == status

    def test_last_use_is_written_in_batches(self, account: Account) -> None:
        for _ in range(3):
            assert account.http.get("/v1/models").status_code == 200

        def used() -> bool:
            account.api_key.refresh_from_db()
            return account.api_key.last_used_at is not None

        eventually(used)


class TestNoSecretIsLeft:
    @pytest.fixture
    def management_secret(self, account: Account) -> str:
        maker = Member.objects.get(organization=account.organization)
        return management.issue(maker=maker, name="ci", role=Role.OWNER).secret

    def test_neither_kind_does_the_others_work(self, account: Account, management_secret: str) -> None:
        answer = httpx.post(
            f"{account.web.url}/v1/chat/completions",
            json=account.chat("hi"),
            headers={"authorization": f"Bearer {management_secret}"},
            timeout=PATIENCE_S,
        )
        assert answer.status_code == 401
        assert "calls no model" in answer.json()["error"]["message"]
        keys = f"{account.web.url}/api/organizations/{account.organization.slug}/keys"
        refused = account.http.get(keys)
        assert refused.status_code == 401
        assert "management key" in refused.json()["error"]["message"]
        headers = {"authorization": f"Bearer {management_secret}"}
        assert httpx.get(keys, headers=headers, timeout=PATIENCE_S).status_code == 200

    def test_an_operators_key_calls_no_model(self, account: Account) -> None:
        oda = make_user(f"Oda-{account.organization.slug}", is_operator=True)
        set_up_second_factor(oda)
        end = timezone.now() + timedelta(minutes=5)
        secret = operator_keys.issue(maker=oda, name="dashboard", may_change=True, expires_at=end).secret
        headers = {"authorization": f"Bearer {secret}"}
        answer = httpx.post(
            f"{account.web.url}/v1/chat/completions", json=account.chat("hi"), headers=headers, timeout=PATIENCE_S
        )
        assert answer.status_code == 401
        assert "an operator key" in answer.json()["error"]["message"]
        members = f"{account.web.url}/api/organizations/{account.organization.slug}/keys"
        assert httpx.get(members, headers=headers, timeout=PATIENCE_S).status_code == 404
        found = httpx.get(
            f"{account.web.url}/api/operator/organizations/{account.organization.slug}",
            headers=headers,
            timeout=PATIENCE_S,
        )
        assert found.json()["slug"] == account.organization.slug

    def test_no_key_is_in_answers_logs_or_tables(self, account: Account, management_secret: str, web: Web) -> None:
        """P36: unknown, mistyped, revoked, right and misplaced tokens; then every place is searched for each."""
        revoked = services.issue(project=account.project, name="gone", actor=owner(account))
        services.revoke(api_key=revoked.api_key, actor=owner(account))
        right = account.secret
        tokens = {
            "unknown": "stranger-token-0123456789abcdef",
            "foreign": "sk-proj-0123456789abcdefghij",
            "mistyped": right[:-1] + ("a" if right[-1] != "a" else "b"),
            "revoked": revoked.secret,
            "right": right,
            "management": management_secret,
        }
        answers = []
        for token in tokens.values():
            for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}, {"authorization": token}):
                for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"):
                    answers.append(
                        httpx.post(f"{web.url}{path}", json={"model": "no-such"}, headers=headers, timeout=PATIENCE_S)
                    )
                answers.append(httpx.get(f"{web.url}/api/me", headers=headers, timeout=PATIENCE_S))
        # In the wrong place: path, query, body, model name, user, idempotency key.
        header = {"authorization": f"Bearer {right}"}
        body = account.chat("hi", user=right)
        answers.append(httpx.get(f"{web.url}/v1/models/{right}", headers=header, timeout=PATIENCE_S))
        answers.append(httpx.get(f"{web.url}/o/{right}/?key={right}", timeout=PATIENCE_S))
        answers.append(
            httpx.post(
                f"{web.url}/v1/chat/completions", json={**body, "model": right}, headers=header, timeout=PATIENCE_S
            )
        )
        answers.append(
            httpx.post(f"{web.url}/v1/chat/completions", content=f'{{"{right}"', headers=header, timeout=PATIENCE_S)
        )
        account.post("hi", user=right)
        eventually(lambda: all(row.status != "started" for row in account.records()))

        texts = {f"answer {number}": answer.text for number, answer in enumerate(answers)}
        texts["log"] = web.log.read_text()
        texts["tables"] = "\n".join(every_row())
        for name, token in tokens.items():
            for place, text in texts.items():
                for form, what in (("token", token), ("digest", secrets.digest(token))):
                    is_stored_digest = form == "digest" and place == "tables" and secrets.kind_of(token) is not None
                    assert is_stored_digest or what not in text, f"{name} {form} in {place}"


def every_row() -> list[str]:
    """Every row of every table, as text."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT quote_ident(table_name) FROM information_schema.tables"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        )
        tables = [name for (name,) in cursor.fetchall()]
        rows = []
        for table in tables:
            cursor.execute(f"SELECT t::text FROM {table} t")  # noqa: S608
            rows += [text for (text,) in cursor.fetchall()]
    return rows

"""The management API: what it does for programs and people, its pages of lists, its refusals and its documents."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from api.protocols.field_support import SCHEMAS, marked_paths
from api.rest.authentication import ManagementThrottle
from portal.alerts.models import AlertRule, WebhookEndpoint
from portal.api_keys import management
from portal.api_keys.models import ApiKey, ManagementKey
from portal.api_keys.secrets import digest, generate
from portal.api_keys.selectors import find_active
from portal.api_keys.services import issue
from portal.organizations.models import Invitation, Member
from portal.organizations.roles import Role
from portal.quotas.models import Quota
from tests.factories.portal import Cast, make_cast, make_model
from tests.factories.usage import use

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return make_cast()


class Api:
    """Calls below an organization's address, with JSON in and out."""

    def __init__(self, cast: Cast, user: Any = None, secret: str = "") -> None:
        self.base = f"/api/organizations/{cast.organization.slug}"
        self.client = Client(headers={"authorization": f"Bearer {secret}"} if secret else None)
        if user:
            self.client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")

    def __call__(self, method: str, path: str = "", body: Any = None, **options: Any) -> Any:
        if method == "get":
            return self.client.get(self.base + path, body, **options)
        return getattr(self.client, method)(self.base + path, body or {}, content_type="application/json", **options)


@pytest.fixture
def program(cast: Cast) -> Api:
    """With an owner's management key."""
    maker = Member.objects.get(user=cast.ada, organization=cast.organization)
    return Api(cast, secret=management.issue(maker=maker, name="terraform", role=Role.OWNER).secret)


class TestKeys:
    def test_a_key_is_issued_listed_changed_rotated_and_revoked(self, cast: Cast, program: Api) -> None:
        made = program(
            "post",
            "/keys",
            {"name": "laptop", "project": cast.project.slug, "networks": ["203.0.113.7", "2001:db8::/32"]},
        )
        assert made.status_code == 201
        assert made.headers["Cache-Control"] == "no-store"
        secret = made.json()["secret"]
        assert find_active(digest(secret)) is not None

        (listed,) = program("get", "/keys").json()["data"]
        assert (listed["name"], listed["networks"]) == ("laptop", ["203.0.113.7/32", "2001:db8::/32"])
        assert "secret" not in listed
        path = f"/keys/{listed['id']}"

        make_model("m")
        refused = program("patch", path, {"models": ["m", "misspelt"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "models")
        assert "'misspelt'" in refused.json()["error"]["message"]
        changed = program("patch", path, {"models": ["m"], "expires_at": "2030-01-01T00:00:00Z"}).json()
        assert (changed["name"], changed["models"], changed["networks"]) == ("laptop", ["m"], listed["networks"])
        assert program("patch", path, {"expires_at": None}).json()["expires_at"] is None

        rotated = program("post", f"{path}/rotate", {"overlap_s": 3600}).json()
        assert find_active(digest(secret)).api_key_id == find_active(digest(rotated["secret"])).api_key_id  # type: ignore[union-attr]

        assert program("delete", path).status_code == 204
        assert program("delete", path).status_code == 204
        assert find_active(digest(secret)) is find_active(digest(rotated["secret"])) is None
        conflict = program("post", f"{path}/rotate")
        assert (conflict.status_code, conflict.json()["error"]["code"]) == (409, "key_not_active")

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"project": "x"}, "name"),
            ({"name": "x", "project": "default", "networks": ["10.0.0.5/8"]}, "networks.0"),
            ({"name": "x", "project": "default", "routes": ["everything"]}, "routes.0"),
            # A misspelt restriction must not be passed over.
            ({"name": "x", "project": "default", "netwroks": ["10.0.0.0/8"]}, "netwroks"),
        ],
    )
    def test_a_wrong_field_is_named(self, program: Api, body: Any, param: str) -> None:
        answer = program("post", "/keys", body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].partition(".")[0] == param.partition(".")[0]
        assert not ApiKey.objects.exists()

    def test_pages_are_cut_by_id_in_one_query_each(
        self, cast: Cast, program: Api, django_assert_num_queries: Any
    ) -> None:
        for number in range(7):
            issue(project=cast.project, name=f"key {number}", actor=cast.ada)
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            # Key, its maker's membership, last use once, membership, page.
            with django_assert_num_queries(5 if not seen else 4, exact=False):
                page = program("get", "/keys", {"limit": 3, **after}).json()
            seen += [each["name"] for each in page["data"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert seen == [f"key {number}" for number in reversed(range(7))]
        assert program("get", "/keys", {"limit": 1000}).json()["error"]["param"] == "limit"


class TestWhoCalls:
    def test_an_outsider_gets_404_and_nobody_401(self, cast: Cast) -> None:
        for path in ("/keys", "/usage"):
            answer = Api(cast, cast.cyd)("get", path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
            nobody = Api(cast)("get", path)
            assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")

    def test_a_role_that_does_not_suffice_is_told_which_does(self, cast: Cast) -> None:
        error = Api(cast, cast.ben)("post", "/projects", {"name": "x"}).json()["error"]
        assert error["message"] == "To create and change projects needs the role Owner or Admin; yours is Developer."

    def test_keys_that_ended_are_refused(self, cast: Cast, program: Api) -> None:
        key = ManagementKey.objects.get()
        ManagementKey.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        assert "expired" in program("get").json()["error"]["message"]
        ManagementKey.objects.update(expires_at=None)
        management.revoke(key=key, actor=cast.ada)
        assert program("get").status_code == 401
        for secret in ("nonsense", generate()):
            refused = Api(cast, secret=secret)("get")
            assert refused.status_code == 401
            assert secret not in refused.content.decode()

    def test_a_key_is_held_to_its_networks(self, cast: Cast, program: Api, settings: Any) -> None:
        ManagementKey.objects.update(allowed_networks=["203.0.113.0/24"])
        assert program("get").status_code == 401
        assert program("get", headers={"x-forwarded-for": "203.0.113.9"}).status_code == 401
        settings.TRUSTED_PROXIES = [ip_network("127.0.0.1")]
        assert program("get", headers={"x-forwarded-for": "203.0.113.9"}).status_code == 200

    def test_a_browser_needs_its_csrf_token(self, cast: Cast) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(cast.ada, backend="django.contrib.auth.backends.ModelBackend")
        answer = client.post(
            f"/api/organizations/{cast.organization.slug}/projects", {"name": "x"}, content_type="application/json"
        )
        assert answer.status_code == 403

    def test_calls_are_counted_by_key(self, cast: Cast, program: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.clear()
        monkeypatch.setattr(ManagementThrottle, "rate", "2/min", raising=False)
        assert [program("get").status_code for _ in range(3)] == [200, 200, 429]
        refused = program("get")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        assert Api(cast, cast.ada)("get").status_code == 200
        cache.clear()


class TestOrganizations:
    def test_settings_projects_and_deletion(self, cast: Cast, program: Api) -> None:
        assert program("patch", "", {"time_zone": "Asia/Tokyo"}).json()["time_zone"] == "Asia/Tokyo"
        assert program("patch", "", {"time_zone": "Mars"}).json()["error"]["param"] == "time_zone"
        assert program("post", "/projects", {"name": "Search"}).json()["slug"] == "search"
        origins = ["https://App.example.com/", "http://localhost:3000"]
        assert program("patch", "", {"allowed_origins": origins}).json()["allowed_origins"] == [
            "https://app.example.com",
            "http://localhost:3000",
        ]
        wrong = program("patch", "", {"allowed_origins": ["https://*.example.com"]})
        assert (wrong.status_code, "every site" in wrong.json()["error"]["message"]) == (400, True)
        again = program("post", "/projects", {"name": "Search"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "name_taken")
        assert program("patch", "/projects/search", {"name": "Find"}).json()["name"] == "Find"
        assert program("post", "/projects/search/archive", {"reason": "done"}).json()["archived_at"]
        made = program("post", "/keys", {"name": "x", "project": "search"})
        assert (made.status_code, made.json()["error"]["code"]) == (409, "not_possible")
        assert program("post", "/projects/search/restore").json()["archived_at"] is None
        assert program("post", "/projects/default/archive").status_code == 409
        assert program("delete", "", {"reason": "test"}).json()["deletes_at"]
        assert program("post", "/restore").json()["deletes_at"] is None

    def test_members_are_invited_changed_and_removed(self, cast: Cast, program: Api) -> None:
        made = program("post", "/invitations", {"email": "eve@example.com", "role": "billing"})
        assert made.status_code == 201
        assert Invitation.objects.get(id=made.json()["id"]).role == Role.BILLING
        assert program("delete", f"/invitations/{made.json()['id']}").status_code == 204
        members = {each["email"]: each["id"] for each in program("get", "/members").json()["data"]}
        ben = members["ben@example.com"]
        assert program("patch", f"/members/{ben}", {"role": "viewer"}).json()["role"] == "viewer"
        assert program("delete", f"/members/{ben}").status_code == 204
        last = program("delete", f"/members/{members['ada@example.com']}")
        assert (last.status_code, last.json()["error"]["code"]) == (409, "last_owner")

    def test_an_admins_key_makes_nobody_an_owner(self, cast: Cast) -> None:
        maker = Member.objects.get(user=cast.dee)
        admin = Api(cast, secret=management.issue(maker=maker, name="x", role=Role.ADMIN).secret)
        ben = Member.objects.get(user=cast.ben)
        assert admin("patch", f"/members/{ben.id}", {"role": "owner"}).status_code == 403
        assert admin("post", "/invitations", {"email": "eve@example.com", "role": "owner"}).status_code == 403


class TestGovernance:
    def test_limits_are_set_by_scope_and_removed(self, cast: Cast, program: Api) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        for scope in ("", f"project:{cast.project.slug}", f"api_key:{key.id}"):
            body = {"what": "spend:month", "amount": "25.50", "scope": scope, "reason": "test"}
            made = program("post", "/limits", body)
            assert made.status_code == 200, made.content
        rows = program("get", "/limits").json()["data"]
        assert made.json() in rows
        assert [(row["what"], row["amount"], row["project"], row["api_key_id"]) for row in rows] == [
            ("spend:month", "25.500000000", None, key.id),
            ("spend:month", "25.500000000", cast.project.slug, None),
            ("spend:month", "25.500000000", None, None),
        ]
        first = program("get", "/limits?limit=2").json()
        assert first["data"] == rows[:2]
        assert program("get", f"/limits?limit=2&after={first['next']}").json() == {"data": rows[2:], "next": None}
        for row in rows:
            assert program("delete", f"/limits/{row['id']}").status_code == 204
        assert not Quota.objects.exists()
        tried = program("post", "/limits/trial", {"what": "requests:day", "amount": "1"})
        assert tried.json() == {"calls": 0, "refused": 0, "since": None, "first_at": None}
        assert not Quota.objects.exists()
        wrong = program("post", "/limits", {"what": "requests:day", "amount": "many"})
        assert wrong.json()["error"]["param"] == "amount"
        elsewhere = program("post", "/limits", {"what": "requests:day", "amount": "1", "scope": "api_key:999"})
        assert elsewhere.json()["error"]["param"] == "scope"

    def test_audit_events_are_filtered(self, cast: Cast, program: Api) -> None:
        issue(project=cast.project, name="laptop", actor=cast.ben)
        (event,) = program("get", "/audit", {"about": "api_key"}).json()["data"]
        for path in ("/audit", "/audit/file"):
            misspelt = program("get", path, {"abuot": "api_key"})
            assert (misspelt.status_code, misspelt.json()["error"]["param"]) == (400, "abuot")
            assert "known are" in misspelt.json()["error"]["message"]
            unknown = program("get", path, {"about": "api_keys"})
            assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "about")
        assert (event["action"], event["actor"]) == ("api_key.issued", "ben@example.com")


class TestAlerts:
    def test_rules_and_webhooks(self, cast: Cast, program: Api, settings: Any) -> None:
        rule = program("post", "/alert-rules", {"what": "budget:month", "amount": "100", "thresholds": [50, 100]})
        assert (rule.status_code, rule.json()["amount"]) == (201, "100.000000000")
        assert program("delete", f"/alert-rules/{rule.json()['id']}").status_code == 204
        assert not AlertRule.objects.exists()
        assert program("post", "/alert-rules", {"what": "budget:month"}).json()["error"]["param"] == "amount"

        private = program("post", "/webhooks", {"url": "https://10.0.0.1/"})
        assert (private.status_code, private.json()["error"]["code"]) == (400, "webhook_refused")
        settings.WEBHOOK_ALLOW_PRIVATE = True
        made = program("post", "/webhooks", {"url": "http://127.0.0.1:9/hook"}).json()
        path = f"/webhooks/{made['id']}"
        assert program("post", f"{path}/secret").json()["secret"] != made["secret"]
        assert program("post", f"{path}/test").status_code == 202
        (sent,) = program("get", "/deliveries", {"state": "pending"}).json()["data"]
        assert program("get", f"/deliveries/{sent['id']}").json()["body"].startswith("{")
        assert program("patch", path, {"is_enabled": False}).json()["is_enabled"] is False
        off = program("post", f"/deliveries/{sent['id']}/resend")
        assert off.status_code == 400
        assert program("delete", path).status_code == 204
        assert not WebhookEndpoint.objects.exists()


class TestMoney:
    def test_usage_comes_in_pages(self, cast: Cast, program: Api) -> None:
        model = make_model()
        key = issue(project=cast.project, name="k", actor=cast.ada).api_key
        made = [str(use(key, model.name, started_at=timezone.now())) for _ in range(5)]
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = program("get", "/usage", {"limit": 2, **after}).json()
            seen += [record["request_id"] for record in page["data"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert sorted(seen) == sorted(made)
        assert program("get", "/usage", {"after": "nonsense"}).json()["error"]["param"] == "after"
        assert program("get", f"/usage/{seen[0]}").json()["request_id"] == seen[0]

    def test_sums_prices_credit_and_ledger_tell_the_same(self, cast: Cast, program: Api) -> None:
        model = make_model()
        key = issue(project=cast.project, name="k", actor=cast.ada).api_key
        now = timezone.now()
        use(key, model.name, started_at=now, prompt_tokens=1_000_000, completion_tokens=0)
        span = {"start": (now - timedelta(hours=1)).isoformat(), "end": (now + timedelta(hours=1)).isoformat()}
        (sums,) = program("get", "/usage/summary", {**span, "group_by": "model"}).json()["data"]
        assert (sums["key"], sums["requests"], sums["cost"]) == (model.name, 1, "0.400000000")
        (price,) = program("get", "/prices").json()["data"]
        assert (price["input"], price["output"], price["is_own"]) == ("0.400000000", "2.030000000", False)
        assert program("get", "/credit").json()["available"] == "4.600000000"
        assert program("get", "/ledger", {"limit": 1}).json()["data"][0]["amount"] == "-0.400000000"
        wrong = program("get", "/usage/summary", {"start": span["end"], "end": span["start"]})
        assert wrong.json()["error"]["param"] == "end"

    def test_of_many_groups_the_dearest_are_told_apart_and_all_others_are_one_sum(
        self, cast: Cast, program: Api
    ) -> None:
        model, now = make_model(), timezone.now()
        keys = [issue(project=cast.project, name=f"k{number}", actor=cast.ada).api_key for number in range(4)]
        for key, tokens in zip(keys, (1000, 4000, 2000, 3000), strict=True):
            use(key, model.name, started_at=now, prompt_tokens=tokens, completion_tokens=0)
        use(keys[0], model.name, started_at=now + timedelta(hours=1), prompt_tokens=1000, completion_tokens=0)
        span = {"start": (now - timedelta(hours=1)).isoformat(), "end": (now + timedelta(hours=2)).isoformat()}
        every = program("get", "/usage/summary", {**span, "group_by": "api_key"}).json()
        assert sorted(row["key"] for row in every["data"]) == sorted(str(key.id) for key in keys)
        assert (every["rest"], every["rest_count"]) == (None, 0)
        few = program("get", "/usage/summary", {**span, "group_by": "api_key", "limit": 2}).json()
        assert [row["key"] for row in few["data"]] == sorted(str(keys[place].id) for place in (1, 3))
        assert (few["rest"]["key"], few["rest"]["prompt_tokens"], few["rest_count"]) == ("", 4000, 2)
        hours = program("get", "/usage/summary", {**span, "group_by": "hour", "limit": 1}).json()
        assert (len(hours["data"]), hours["rest"]) == (2, None)
        too_many = program("get", "/usage/summary", {**span, "limit": 1001})
        assert too_many.json()["error"]["param"] == "limit"


class TestDocuments:
    def test_the_openapi_document_describes_both_halves(self) -> None:
        document = Client().get("/v1/openapi.json").json()
        assert "/v1/chat/completions" in document["paths"]
        assert "/api/organizations/{slug}/keys" in document["paths"]
        body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert "messages" in document["components"]["schemas"][name]["properties"]
        security = document["paths"]["/api/me"]["get"]["security"]
        assert {"managementKey": []} in security

    def test_the_pages_show_every_operation_without_a_script(self) -> None:
        pages = {}
        for address in ("/api/docs", "/api/docs/inference"):
            answer = Client().get(address)
            pages[address] = answer.content.decode()
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "<script>" not in pages[address]
        document = Client().get("/v1/openapi.json").json()
        for path, item in document["paths"].items():
            for method, operation in item.items():
                page = pages["/api/docs/inference" if operation["tags"][0] == "inference" else "/api/docs"]
                assert f'id="{operation["operationId"]}"' in page, f"{method} {path}"

    def test_the_inference_page_tells_base_urls_fields_and_what_has_no_effect(self, settings: Any) -> None:
        settings.PUBLIC_URL, settings.API_BASE_URL = "https://llm.example", "https://llm.example/v1"
        make_model("a-model")
        page = Client().get("/api/docs/inference").content.decode()
        assert "<code>https://llm.example/v1</code>" in page
        assert "<code>https://llm.example</code>" in page
        assert "a-model" in page
        for field in ("messages[].role", "choices[].message.content", "tools[].function.name"):
            assert f"<code>{field}</code>" in page, field
        for title, schema in SCHEMAS.items():
            for support in ("ignored", "refused"):
                for path, why in marked_paths(schema, support):
                    assert f"<code>{path}</code>" in page, f"{title} {path}"
                    assert escape(why[1:]) in page

"""The operator's paths of the management API: their keys, and that each act is the one of the page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from api.rest.authentication import ManagementThrottle
from billing.ledger.models import CreditGrant
from billing.ledger.selectors import balance
from billing.pricing.selectors import current_price
from portal.api_keys import operator_keys, secrets
from portal.api_keys.models import OperatorKey
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog.models import Deployment, Model
from portal.catalog.status import DeploymentStatus, record
from portal.errors import NotPossible
from portal.operator.models import InvoiceRun
from tests.factories.portal import MODEL, Cast, make_cast, make_model, set_up_second_factor
from tests.factories.usage import use

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    made = make_cast()
    set_up_second_factor(made.oda)
    return made


class Api:
    """Calls below /api/operator, with JSON in and out."""

    def __init__(self, secret: str) -> None:
        self.client = Client(headers={"authorization": f"Bearer {secret}"})

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        if method == "get":
            return self.client.get(f"/api/operator{path}", body)
        return getattr(self.client, method)(f"/api/operator{path}", body or {}, content_type="application/json")


def make_key(cast: Cast, *, may_change: bool = True) -> str:
    return operator_keys.issue(
        maker=cast.oda, name="sales", may_change=may_change, expires_at=timezone.now() + timedelta(days=1)
    ).secret


@pytest.fixture
def program(cast: Cast) -> Api:
    return Api(make_key(cast))


class TestKeys:
    def test_an_operator_makes_one_in_the_portal_where_it_is_shown_once(self, cast: Cast) -> None:
        browser = Client()
        browser.force_login(cast.oda, backend="django.contrib.auth.backends.ModelBackend")
        page = reverse("portal:operator_keys")
        answer = browser.post(page, {"name": "dashboard", "expires": "30", "networks": "203.0.113.0/24"})
        secret = answer.context["issued"].secret
        assert secret in answer.content.decode()
        assert "no-store" in answer.headers["Cache-Control"]
        assert secret not in browser.get(page).content.decode()
        assert secrets.kind_of(secret) is secrets.Kind.OPERATOR
        key = OperatorKey.objects.get()
        assert (key.may_change, key.allowed_networks) == (False, ["203.0.113.0/24"])
        assert timedelta(days=29) < key.expires_at - timezone.now() <= timedelta(days=30)
        assert browser.post(page, {"name": "for ever", "expires": ""}).status_code == 400
        browser.post(reverse("portal:operator_key_revoke", args=[key.id]))
        assert list(AuditEvent.objects.filter(subject_type="operatorkey").values_list("action", "actor_label")) == [
            ("operator_key.issued", "oda@example.com"),
            ("operator_key.revoked", "oda@example.com"),
        ]

    def test_without_a_second_factor_there_is_none(self, cast: Cast) -> None:
        Authenticator.objects.all().delete()
        with pytest.raises(NotPossible):
            make_key(cast)
        browser = Client()
        browser.force_login(cast.oda, backend="django.contrib.auth.backends.ModelBackend")
        assert browser.post(reverse("portal:operator_keys"), {"name": "x", "expires": "7"}).status_code == 400
        assert not OperatorKey.objects.exists()

    def test_it_ends_with_its_time_its_maker_and_their_second_factor(self, cast: Cast, program: Api) -> None:
        def status() -> int:
            return int(program("get", "/overview").status_code)

        assert status() == 200
        OperatorKey.objects.update(allowed_networks=["203.0.113.0/24"])
        assert status() == 401
        OperatorKey.objects.update(allowed_networks=[], expires_at=timezone.now())
        assert status() == 401
        OperatorKey.objects.update(expires_at=timezone.now() + timedelta(days=1))
        cast.oda.is_staff = False
        cast.oda.save()
        assert status() == 401
        cast.oda.is_staff = True
        cast.oda.save()
        assert status() == 200
        Authenticator.objects.all().delete()
        assert status() == 401
        set_up_second_factor(cast.oda)
        key = OperatorKey.objects.get()
        assert key.last_used_at is not None
        assert program("delete", f"/keys/{key.id}").status_code == 204
        assert status() == 401

    def test_what_is_done_with_it_is_on_record_under_both_names(self, cast: Cast, program: Api) -> None:
        path = f"/organizations/{cast.organization.slug}/suspension"
        shown = program("put", path, {"is_suspended": True, "reason": "chargeback"}).json()
        assert shown["suspended_at"] is not None
        event = AuditEvent.objects.get(action="organization.suspended")
        assert (event.actor_label, event.reason, event.address) == ("oda@example.com", "chargeback", "127.0.0.1")
        assert event.credential.startswith("operator key sales (sk-tf-operator-")
        (listed,) = program("get", "/audit", {"organization": cast.organization.slug, "text": "chargeback"}).json()[
            "data"
        ]
        assert (listed["credential"], listed["organization"]) == (event.credential, cast.organization.slug)
        file = b"".join(program("get", "/audit/file", {"about": "operator_key"}).streaming_content).decode()
        assert "operator_key.issued" in file
        assert "organization.suspended" not in file
        assert program("put", path, {"is_suspended": False, "reason": "paid"}).json()["suspended_at"] is None

    def test_calls_are_counted_by_key(self, program: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.clear()
        monkeypatch.setattr(ManagementThrottle, "rate", "2/min", raising=False)
        assert [program("get", "/keys").status_code for _ in range(3)] == [200, 200, 429]
        cache.clear()

    def test_one_that_reads_previews_and_changes_nothing(self, cast: Cast) -> None:
        model, reader = make_model(), Api(make_key(cast, may_change=False))
        price = {"input": "1.00", "output": "2.00"}
        assert reader("post", f"/models/{model.id}/prices/preview", price).status_code == 200
        refused = reader("post", f"/models/{model.id}/prices", price)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert "only reads" in refused.json()["error"]["message"]


class TestOrganizations:
    def test_they_are_found_with_their_balance(self, cast: Cast, program: Api) -> None:
        (found,) = program("get", "/organizations", {"q": "ada@"}).json()["data"]
        assert (found["slug"], found["members"]) == (cast.organization.slug, 3)
        detail = program("get", f"/organizations/{cast.organization.slug}").json()
        assert detail["available"] == found["available"] == detail["balance"]
        assert program("get", "/overview").json()["organizations"] == 2
        first = program("get", "/organizations", {"limit": 1}).json()
        assert len(first["data"]) == 1
        assert program("get", "/organizations", {"after": first["next"]}).json()["next"] is None

    def test_credit_is_given_once_for_a_key(self, cast: Cast, program: Api) -> None:
        path = f"/organizations/{cast.organization.slug}/credit"
        before = balance(cast.organization.id).available_nano
        body = {"amount": "25.00", "reason": "goodwill", "key": "0191d6a6-6b1f-7c3e-8f52-6d3f3f1b8a01"}
        assert [program("post", path, body).status_code for _ in range(2)] == [201, 201]
        assert balance(cast.organization.id).available_nano == before + 25 * 10**9
        assert CreditGrant.objects.filter(reason="goodwill").count() == 1
        assert AuditEvent.objects.filter(action="credit.granted", reason="goodwill").count() == 1
        assert program("post", path, {**body, "amount": "-1"}).json()["error"]["param"] == "amount"
        assert program("post", path, {**body, "amount": "26"}).json()["error"]["code"] == "key_reused"

    def test_terms_fees_and_exemption(self, cast: Cast, program: Api) -> None:
        base = f"/organizations/{cast.organization.slug}"
        terms = program("put", f"{base}/terms", {"credit_limit": "100", "reason": "invoice"}).json()
        assert terms["credit_limit"] == "100.000000000"
        fee = {"name": "Seats", "quantity": 3, "unit_amount": "9.50", "starts_on": f"{timezone.now():%Y-%m-%d}"}
        (made,) = program("post", f"{base}/fees", fee).json()
        assert (made["unit_amount"], made["quantity"], made["ends_on"]) == ("9.5", 3, None)
        end = f"{timezone.now() + timedelta(days=40):%Y-%m-%d}"
        (ended,) = program("post", f"{base}/fees/{made['id']}/end", {"ends_on": end}).json()
        assert ended["ends_on"] == end
        program("put", f"{base}/tax-exemption", {"tax_exemption": "EX-1"})
        shown = program("get", f"{base}/money").json()
        assert (shown["tax_exemption"], shown["fees"], shown["purchases"]) == ("EX-1", [ended], [])
        assert program("post", f"{base}/fees", {**fee, "unit_amount": "much"}).json()["error"]["param"] == "unit_amount"


class TestCatalog:
    def test_a_model_is_added_priced_deployed_and_published(self, program: Api) -> None:
        wanted = {
            "name": "tiny",
            "display_name": "Tiny",
            "context_tokens": 2048,
            "default_max_output_tokens": 256,
            "max_output_tokens": 512,
        }
        assert program("post", "/models", {**wanted, "max_output_tokens": 4096}).status_code == 400
        made = program("post", "/models", wanted).json()
        assert (made["is_published"], made["price"]) == (False, None)
        path = f"/models/{made['id']}"
        assert program("post", f"{path}/prices", {"input": "0.40", "output": "2.03"}).status_code == 204
        price = current_price("tiny", timezone.now())
        assert price is not None
        assert (price.input_nano, price.output_nano) == (400_000_000, 2_030_000_000)
        (version,) = program("get", f"{path}/prices").json()["data"]
        assert (version["input"], version["organization"], version["effective_until"]) == ("0.400000000", None, None)
        wrong = program("post", f"{path}/prices", {"input": "cheap", "output": "2.03"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input")
        deployed = program("post", f"{path}/deployments", {"address": "127.0.0.1:50999", "weight": 10}).json()
        assert (deployed["model"], deployed["state"], deployed["is_enabled"]) == ("tiny", "unknown", True)
        assert program("patch", f"/deployments/{deployed['id']}", {"is_enabled": False}).json()["weight"] == 10
        assert not Deployment.objects.get(id=deployed["id"]).is_enabled
        assert program("patch", path, {"is_published": True}).json()["price"]["output"] == "2.030000000"
        assert Model.objects.get(name="tiny").context_tokens == 2048
        assert program("patch", f"/deployments/{deployed['id']}", {"address": "http://x"}).json()["error"]["param"]
        actions = AuditEvent.objects.filter(organization=None).values_list("action", flat=True)
        assert set(actions) >= {"model.added", "price.set", "deployment.added", "deployment.changed", "model.changed"}

    def test_engines_tell_how_they_are(self, program: Api) -> None:
        deployment = Deployment.objects.get(model=make_model())
        record(deployment.id, DeploymentStatus(False, timezone.now(), "engine_unavailable", "refused", {"queue": 3}))
        (shown,) = program("get", "/deployments").json()["data"]
        assert (shown["state"], shown["error_code"]) == ("failing", "engine_unavailable")
        assert (shown["error"], shown["facts"]) == ("refused", {"queue": 3})

    def test_previews_discounts_and_tiers(self, cast: Cast, program: Api) -> None:
        model = make_model()
        last_month = timezone.now().replace(day=1) - timedelta(days=3)
        key = issue(project=cast.project, name="x", actor=cast.ada).api_key
        use(key, MODEL, started_at=last_month, price_at=timezone.now())
        preview = program("post", f"/models/{model.id}/prices/preview", {"input": "4.00", "output": "20.30"}).json()
        assert preview["requests"] == 1
        assert float(preview["proposed"]) > float(preview["billed"]) > 0
        assert preview["organizations"][0]["organization"] == cast.organization.slug
        discount = {"organization": cast.organization.slug, "percent": "50", "reason": "big"}
        halved = program("post", "/discounts/preview", discount).json()
        assert float(halved["proposed"]) == pytest.approx(float(halved["billed"]) / 2)
        assert not program("get", "/discounts").json()["data"]
        assert program("post", "/discounts", discount).status_code == 204
        (given,) = program("get", "/discounts").json()["data"]
        assert (given["organization"], given["model"], float(given["percent"])) == (cast.organization.slug, "", 50)
        assert given["effective_until"] is None
        assert program("post", f"/discounts/{given['id']}/end", {}).status_code == 400
        for _ in range(2):
            assert program("post", f"/discounts/{given['id']}/end", {"reason": "left"}).status_code == 204
        (given,) = program("get", "/discounts").json()["data"]
        assert given["effective_until"] <= timezone.now().isoformat()
        unknown = program("post", "/discounts", {**discount, "organization": "no"})
        assert unknown.json()["error"]["param"] == "organization"
        tiers = {"tiers": [{"from_tokens": 10, "percent": "5"}, {"from_tokens": 1000, "percent": "7.5"}]}
        assert program("post", "/volume-tiers/preview", tiers).status_code == 200
        assert program("get", "/volume-tiers").json() == {"tiers": []}
        assert program("put", "/volume-tiers", tiers).json()["tiers"][1] == {"from_tokens": 1000, "percent": "7.50"}
        falling = {"tiers": [{"from_tokens": 10, "percent": "5"}, {"from_tokens": 20, "percent": "4"}]}
        assert program("put", "/volume-tiers", falling).status_code == 400


class TestMoney:
    def test_a_month_is_previewed_and_its_run_watched(self, program: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("portal.operator.services._enqueue", lambda run_id: None)
        run = program("post", "/invoice-runs", {"period": "2026-01"})
        assert (run.status_code, run.json()["state"], run.json()["is_preview"]) == (202, "queued", True)
        assert program("get", f"/invoice-runs/{run.json()['id']}").json()["started_by"] == "oda@example.com"
        month = program("get", "/invoices/month", {"period": "2026-01"}).json()
        assert (month["run"]["id"], month["is_closed"], month["totals"]) == (InvoiceRun.objects.get().id, False, {})
        assert program("get", "/invoices", {"period": "2026-01"}).json() == {"data": [], "next": None}
        assert program("get", "/invoices", {"period": "January"}).json()["error"]["param"] == "period"
        assert program("post", "/invoice-runs", {"period": "2026-13"}).json()["error"]["param"] == "period"

    def test_codes_and_rates(self, program: Api) -> None:
        code = {"code": "HELLO-1", "description": "Hello", "amount": "5", "currency": "USD", "max_redemptions": 3}
        made = program("post", "/promo-codes", code).json()
        assert (made["amount"], made["is_active"], made["redeemed"]) == ("5.000000000", True, 0)
        for _ in range(2):
            assert not program("patch", f"/promo-codes/{made['id']}", {"is_active": False}).json()["is_active"]
        assert AuditEvent.objects.filter(action="promo_code.switched_off").count() == 1
        rate = {"country": "DE", "name": "VAT", "percent": "19", "effective_from": "2027-01-01"}
        assert program("post", "/tax-rates", rate).status_code == 204
        assert program("get", "/tax-rates").json()["data"][0]["percent"] == "19.0000"
        assert program("get", "/payment-events", {"outcome": "odd"}).json()["error"]["param"] == "outcome"
        assert program("get", "/payment-events").json()["data"] == []


class TestService:
    def test_a_month_is_closed_once(self, cast: Cast, program: Api) -> None:
        closed = program("post", "/reconciliation/closes", {"period": "2020-01"}).json()
        assert (closed["period"], closed["closed_by"]) == ("2020-01", "Oda <oda@example.com>")
        assert program("post", "/reconciliation/closes", {"period": "2020-01"}).json() == closed
        refused = program("post", "/reconciliation/closes", {"period": f"{timezone.now():%Y-%m}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "period_open")
        shown = program("get", "/reconciliation").json()
        assert (shown["all"]["total"], shown["closes"][0]["period"]) == (0, "2020-01")
        file = program("get", "/reconciliation/file", {"period": "2020-01"})
        assert file.headers["Content-Type"].startswith("text/csv")
        assert AuditEvent.objects.filter(action="period.closed").count() == 1

    def test_operations_capacity_and_retention(self, program: Api) -> None:
        make_model()
        shown = program("get", "/operations", {"range": "24h", "group": "organization"}).json()
        assert (shown["range"], shown["sums"]["requests"]) == ("24h", 0)
        assert program("get", "/operations", {"organization": "nobody"}).json()["error"]["param"] == "organization"
        assert program("get", "/operations", {"range": "1y"}).json()["error"]["param"] == "range"
        (economy,) = program("get", "/capacity", {"tokens_per_s": "100", "gpu_hour": "3.6"}).json()["data"]
        # An hour gives 360,000 tokens at full load; a million cost 2.78 hours, by 70 %.
        assert (economy["model"], economy["cost"][:5], economy["revenue"][:4]) == (MODEL, "14.28", "2.03")
        assert program("get", "/retention").json()["kept"][0]["how_long"] == "Never kept"

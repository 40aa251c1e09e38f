"""The management API's way to credit, papers and files: what the pages do, by programs, with the Stripe fake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from billing.credits.models import PromoCode, TopUp
from billing.exports.models import Export
from billing.exports.services import make
from billing.ledger.selectors import balance
from portal.api_keys import management
from portal.api_keys.models import RetiredSecret
from portal.api_keys.selectors import find_active
from portal.api_keys.services import issue, rotate
from portal.audit.models import AuditEvent
from portal.organizations.models import Member
from portal.organizations.roles import Role
from tests.api.gateway.test_rest import Api
from tests.factories.portal import Cast, make_cast, make_model
from tests.factories.usage import use
from tests.fakes.stripe import FakeStripe
from tests.portal.world import make_money

pytestmark = pytest.mark.django_db
USD = 10**9


@pytest.fixture(scope="module")
def server() -> Iterator[FakeStripe]:
    with FakeStripe() as running:
        yield running


@pytest.fixture
def fake(server: FakeStripe, settings: Any, tmp_path: Path) -> FakeStripe:
    server.reset()
    settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE = server.secret_key, server.url
    settings.STRIPE_WEBHOOK_SECRETS = [server.webhook_secret]
    settings.VAR_DIR = tmp_path
    cache.clear()
    return server


@pytest.fixture
def cast() -> Cast:
    return make_cast()


@pytest.fixture
def program(cast: Cast) -> Api:
    """With a billing member's management key."""
    maker = Member.objects.get(user=cast.ada, organization=cast.organization)
    return Api(cast, secret=management.issue(maker=maker, name="books", role=Role.BILLING).secret)


class TestCredit:
    def test_credit_is_bought_on_the_providers_page_once_for_a_key(
        self, cast: Cast, program: Api, fake: FakeStripe
    ) -> None:
        before = balance(cast.organization.id).credit_nano
        body = {"amount": "50.00", "key": "6d3f8f8e-9d0c-4b53-9b0e-0d4c6a3f5a11", "keeps_card": True}
        made = program("post", "/top-ups", body)
        assert (made.status_code, made.json()["state"], made.json()["amount"]) == (201, "open", "50")
        assert program("post", "/top-ups", body).json()["id"] == made.json()["id"]
        fake.store.complete_checkout(TopUp.objects.get().session_id)
        assert program("get", f"/top-ups/{made.json()['id']}").json()["state"] == "paid"
        assert balance(cast.organization.id).credit_nano == before + 50 * USD
        (listed,) = program("get", "/top-ups").json()["data"]
        assert listed["state"] == "paid"
        event = AuditEvent.objects.get(action="credit.checkout_opened")
        assert event.credential.startswith("management key books")

        assert program("post", "/payment-page").json()["url"].startswith("http")
        wanted = {"is_enabled": True, "threshold": "5", "amount": "25", "monthly_ceiling": "100"}
        assert program("put", "/auto-recharge", wanted).json()["is_enabled"] is True
        shown = program("get", "/auto-recharge").json()
        assert (shown["threshold"], shown["amount"], shown["monthly_ceiling"]) == ("5", "25", "100")

    @pytest.mark.parametrize("amount", ["1", "x", "5.001"])
    def test_an_odd_amount_is_a_400(self, program: Api, fake: FakeStripe, amount: str) -> None:
        assert program("post", "/top-ups", {"amount": amount}).status_code == 400
        assert not TopUp.objects.exists()

    def test_auto_recharge_needs_a_card(self, program: Api, fake: FakeStripe) -> None:
        wanted = {"is_enabled": True, "threshold": "5", "amount": "25", "monthly_ceiling": "100"}
        refused = program("put", "/auto-recharge", wanted)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_card_kept")

    def test_without_a_provider_it_says_so(self, program: Api) -> None:
        refused = program("post", "/top-ups", {"amount": "50"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "payments_not_configured")

    def test_a_code_is_redeemed_once_and_guessing_ends(self, cast: Cast, program: Api) -> None:
        cache.clear()
        PromoCode.objects.create(
            code="FAIR",
            description="Fair",
            amount_nano=USD,
            currency="USD",
            max_redemptions=5,
            valid_from=timezone.now(),
        )
        made = program("post", "/promo-codes", {"code": "fair"})
        assert (made.status_code, made.json()["amount"]) == (201, "1.000000000")
        again = program("post", "/promo-codes", {"code": "FAIR"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "promo_code_redeemed")
        for _ in range(9):
            assert program("post", "/promo-codes", {"code": "GUESS"}).json()["error"]["code"] == "promo_code_unknown"
        last = program("post", "/promo-codes", {"code": "GUESS"})
        assert last.json()["error"]["code"] == "promo_code_too_many_tries"
        cache.clear()


class TestPapers:
    def test_invoices_and_credit_notes_are_found_and_downloaded(self, cast: Cast, program: Api) -> None:
        made = make_money(cast.organization)
        (note,) = program("get", "/credit-notes").json()["data"]
        assert (note["id"], note["number"], note["amount"]) == (made["credit_note_id"], "WCN-1", "0.01")
        assert program("get", f"/credit-notes/{note['id']}/pdf").content.startswith(b"%PDF")
        usage = program("get", f"/invoices/{note['invoice_id']}/usage")
        assert usage.headers["Content-Type"].startswith("text/csv")
        assert program("patch", "/billing-details", {"language": "de"}).json()["language"] == "de"
        assert program("patch", "/billing-details", {"language": "tlh"}).json()["error"]["param"] == "language"


class TestFiles:
    def test_an_export_is_asked_for_watched_and_downloaded(
        self, cast: Cast, program: Api, settings: Any, tmp_path: Path
    ) -> None:
        settings.VAR_DIR = tmp_path
        model = make_model()
        key = issue(project=cast.project, name="k", actor=cast.ada).api_key
        use(key, model.name, started_at=timezone.now())
        period = f"{timezone.now():%Y-%m}"
        wanted = {"kind": "usage", "format": "csv", "period": period, "project": cast.project.slug}
        asked = program("post", "/exports", wanted)
        assert asked.status_code == 202
        path = f"/exports/{asked.json()['id']}"
        if Export.objects.get().state == "queued":
            assert program("get", f"{path}/file").status_code == 404
            make(asked.json()["id"])
        ready = program("get", path).json()
        assert (ready["state"], ready["rows"]) == ("finished", 1)
        file = program("get", f"{path}/file")
        body = b"".join(file.streaming_content)
        assert hashlib.sha256(body).hexdigest() == ready["sha256"] == file.headers["X-Content-SHA256"]
        assert program("post", "/exports", {**wanted, "period": "soon"}).json()["error"]["code"] == "invalid_period"
        assert program("post", "/exports", {**wanted, "project": "none"}).json()["error"]["param"] == "project"
        assert [row["id"] for row in program("get", "/exports").json()["data"]] == [asked.json()["id"]]

    def test_the_audit_log_is_a_file_for_whom_may_read_it(self, cast: Cast, program: Api) -> None:
        issue(project=cast.project, name="laptop", actor=cast.ada)
        assert program("get", "/audit/file").status_code == 403
        file = Api(cast, cast.ada)("get", "/audit/file", {"about": "api_key"})
        lines = b"".join(file.streaming_content).decode().splitlines()
        assert len(lines) == 2
        assert "api_key.issued" in lines[1]


def test_the_overlap_of_a_rotation_is_seen_and_ended(cast: Cast) -> None:
    issued = issue(project=cast.project, name="k", actor=cast.ada)
    rotate(api_key=issued.api_key, overlap=timedelta(hours=1), actor=cast.ada)
    owner = Api(cast, cast.ada)
    (old,) = owner("get", f"/keys/{issued.api_key.id}/retired-secrets").json()["data"]
    digest = RetiredSecret.objects.get(id=old["id"]).digest
    assert find_active(digest) is not None
    assert owner("delete", f"/keys/{issued.api_key.id}/retired-secrets/{old['id']}").status_code == 204
    assert find_active(digest) is None

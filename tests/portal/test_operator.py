"""What operators do: models, prices, credit, suspension, the invoice run; and the commands of a new installation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.invoices.models import Invoice
from billing.ledger import selectors as ledger
from billing.pricing.selectors import current_price, price_history
from billing.rollups.services import take_pending
from billing.usage.models import UsageRecord
from portal.api_keys import secrets
from portal.api_keys.models import ApiKey
from portal.api_keys.selectors import find_active
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog import status
from portal.catalog.models import Deployment, Model
from portal.catalog.selectors import enabled_deployments, find_model, published_models
from portal.operator.models import InvoiceRun, RunState
from portal.operator.services import execute_run, start_run
from portal.organizations.services import create_organization
from portal.users.models import User
from tests.factories.portal import Cast
from tests.factories.usage import use

Browser = Callable[..., Client]
# As an engine tells them (api/deployment_status.py).
FACTS: dict[str, status.Fact] = {
    "model": "small",
    "engine": "a88c4644",
    "version": "0.1.0",
    "device": "cpu",
    "precision": "float16",
    "draft_head": "eagle",
    "context_tokens": 8192,
    "running": 4,
    "max_sequences": 16,
    "waiting": 0,
    "pages_used": 12,
    "pages_total": 1024,
    "page_tokens": 16,
    "prompt_tokens": 2000,
    "reused_tokens": 500,
    "output_tokens": 900,
    "drafted_tokens": 1000,
    "accepted_tokens": 750,
    "drafted_by_position": [500, 500],
    "accepted_by_position": [450, 300],
}


class TestCatalog:
    def test_selectors_give_published_models_and_enabled_deployments(self, model: Model) -> None:
        assert [each.name for each in published_models()] == [model.name]
        (deployment,) = enabled_deployments()
        assert (deployment.model, deployment.upstream_model) == (model.name, model.name)
        Model.objects.update(is_published=False)
        assert find_model(model.name) is None
        assert enabled_deployments() == []

    def test_operator_sets_a_price_and_earlier_versions_stay(
        self, cast: Cast, model: Model, signed_in: Browser
    ) -> None:
        address = reverse("portal:operator_price", args=[model.id])
        form = {"input_price": "0.50", "cached_input_price": "", "output_price": "$3"}
        assert signed_in(cast.oda).post(address, form).status_code == 302
        price = current_price(model.name, timezone.now())
        assert price
        assert (price.input_nano, price.cached_input_nano, price.output_nano) == (500_000_000, None, 3_000_000_000)
        assert len(price_history(model.name)) == 2
        assert AuditEvent.objects.filter(action="price.set", actor=cast.oda).exists()

    @pytest.mark.parametrize(
        ("field", "value"), [("input_price", "free"), ("output_price", "-1"), ("effective_from", "2020-01-01T00:00")]
    )
    def test_odd_price_is_refused_at_the_field(
        self, cast: Cast, model: Model, signed_in: Browser, field: str, value: str
    ) -> None:
        form = {"input_price": "1", "output_price": "1", field: value}
        answer = signed_in(cast.oda).post(reverse("portal:operator_price", args=[model.id]), form)
        assert answer.status_code == 400
        assert answer.context["price_form"].errors[field]

    def test_name_of_a_model_never_changes(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        form = {
            "name": "other",
            "display_name": "New",
            "context_tokens": 8192,
            "default_max_output_tokens": 10,
            "max_output_tokens": 20,
            "is_published": "on",
        }
        assert signed_in(cast.oda).post(reverse("portal:operator_model", args=[model.id]), form).status_code == 302
        model.refresh_from_db()
        assert (model.name, model.display_name) == ("smollm2-135m-instruct", "New")

    def test_output_above_the_context_is_refused(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        form = {
            "display_name": "New",
            "context_tokens": 100,
            "default_max_output_tokens": 10,
            "max_output_tokens": 200,
        }
        assert signed_in(cast.oda).post(reverse("portal:operator_model", args=[model.id]), form).status_code == 400

    @pytest.mark.parametrize(
        ("kind", "address", "variable"),
        [
            ("engine", "https://host/v1", ""),
            ("engine", "host", ""),
            ("openai_compatible", "host:50051", ""),
            ("openai_compatible", "https://host/v1", "SECRET_KEY"),
        ],
    )
    def test_odd_deployment_is_refused(
        self, cast: Cast, model: Model, signed_in: Browser, kind: str, address: str, variable: str
    ) -> None:
        form = {"kind": kind, "address": address, "credential_variable": variable, "weight": 100, "is_enabled": "on"}
        page = reverse("portal:operator_deployment_new", args=[model.id])
        assert signed_in(cast.oda).post(page, form).status_code == 400
        form |= {"kind": "openai_compatible", "address": "https://host/v1", "credential_variable": "UPSTREAM_KEY_ONE"}
        assert signed_in(cast.oda).post(page, form).status_code == 302

    def test_engines_page_shows_what_was_reported(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        deployment = Deployment.objects.get()
        client, page = signed_in(cast.oda), reverse("portal:operator_engines")
        status.record(deployment.id, status.DeploymentStatus(True, timezone.now(), facts=FACTS))
        body = client.get(page, headers={"HX-Request": "true"}).content.decode()
        assert "Healthy" in body
        assert "<html" not in body
        for text in ("8,192 tokens", "4 of 16", "12 of 1,024, 16 tokens each", "2,000, 500 of them reused"):
            assert f"<dd>{text}</dd>" in body
        assert "<dd>eagle; 75.0 % of 1,000 drafts accepted, by position 90.0 %; 60.0 %</dd>" in body
        body = client.get(page, headers={"HX-Request": "true", "accept-language": "de"}).content.decode()
        for text in ("8.192 Token", "4 von 16", "12 von 1.024, je 16 Token", "2.000, davon 500 wiederverwendet"):
            assert f"<dd>{text}</dd>" in body
        assert "<dd>eagle; 75,0 % von 1.000 Entwürfen angenommen, nach Stelle 90,0 %; 60,0 %</dd>" in body
        without = FACTS | {"draft_head": "none", "drafted_tokens": 0}
        status.record(deployment.id, status.DeploymentStatus(True, timezone.now(), facts=without))
        body = client.get(page, headers={"HX-Request": "true", "accept-language": "de"}).content.decode()
        assert "<dt>Entwurfskopf</dt><dd>keine</dd>" in body
        gone = status.DeploymentStatus(False, timezone.now(), "engine_unavailable", "UNAVAILABLE: connection refused")
        status.record(deployment.id, gone)
        body = client.get(page, headers={"accept-language": "de"}).content.decode()
        assert "Modell nicht da" in body
        assert "UNAVAILABLE: connection refused" in body


class TestOrganizations:
    def test_credit_form_sent_twice_gives_once(self, cast: Cast, signed_in: Browser) -> None:
        client = signed_in(cast.oda)
        address = reverse("portal:operator_credit", args=[cast.organization.slug])
        form = {"amount": "25.50", "reason": "Goodwill", "key": str(uuid.uuid4())}
        for _ in range(2):
            assert client.post(address, form).status_code == 302
        assert ledger.balance_nano(cast.organization.id) == 30_500_000_000

    @pytest.mark.parametrize("amount", ["0", "-5", "many", "9999999"])
    def test_odd_credit_is_refused(self, cast: Cast, signed_in: Browser, amount: str) -> None:
        address = reverse("portal:operator_credit", args=[cast.organization.slug])
        form = {"amount": amount, "reason": "x", "key": str(uuid.uuid4())}
        assert signed_in(cast.oda).post(address, form).status_code == 400

    def test_credit_limit_and_suspension_are_set_with_a_reason(self, cast: Cast, signed_in: Browser) -> None:
        client, slug = signed_in(cast.oda), cast.organization.slug
        client.post(reverse("portal:operator_terms", args=[slug]), {"credit_limit": "100", "reason": "Contract"})
        assert ledger.available_nano(cast.organization.id) == 105_000_000_000
        suspend = reverse("portal:operator_suspension", args=[slug])
        assert client.post(suspend, {"suspend": "1", "reason": ""}).status_code == 400
        client.post(suspend, {"suspend": "1", "reason": "Unpaid"})
        cast.organization.refresh_from_db()
        assert cast.organization.is_suspended
        assert "is suspended" in signed_in(cast.ada).get(f"/o/{slug}/").content.decode()
        client.post(suspend, {"suspend": "0", "reason": "Paid"})
        reasons = AuditEvent.objects.filter(actor=cast.oda).order_by("id").values_list("reason", flat=True)
        assert list(reasons) == ["Contract", "Unpaid", "Paid"]

    def test_search_finds_by_name_slug_and_address(self, cast: Cast, signed_in: Browser) -> None:
        client, page = signed_in(cast.oda), reverse("portal:operator_organizations")
        for text in ("analytical", "ben@example", "Engines"):
            found = client.get(page, {"q": text}).context["rows"]
            assert [organization.name for organization, *_ in found] == ["Analytical Engines"], text

    def test_list_takes_the_same_queries_for_any_size(
        self, cast: Cast, signed_in: Browser, django_assert_num_queries: Any
    ) -> None:
        client = signed_in(cast.oda)
        # Session, user, count, page, balances, spend.
        for order in ("newest", "spent", "name"):
            with django_assert_num_queries(6):
                client.get(reverse("portal:operator_organizations"), {"order": order})

    def test_list_is_ordered_by_what_was_spent_this_month(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        client, page = signed_in(cast.oda), reverse("portal:operator_organizations")
        other = create_organization(owner=cast.cyd, name="Älteste")
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        now = timezone.now()
        use(key, model.name, completion_tokens=100_000, started_at=now, price_at=now)
        use(key, model.name, completion_tokens=100_000, started_at=now - timedelta(days=32), price_at=now)
        take_pending(now=now)
        rows = client.get(page, {"order": "spent"}).context["rows"]
        [record] = UsageRecord.objects.filter(started_at__gte=now)
        assert (rows[0][0], rows[0][2]) == (cast.organization, record.cost_nano)
        assert {nano for _each, _balance, nano in rows[1:]} == {0}
        newest = client.get(page).context["rows"]
        assert newest[0][0] == other
        odd = client.get(page, {"order": "sideways", "state": "gone", "page": "-3"})
        assert odd.context["rows"] == newest

    @pytest.mark.parametrize("order", ["newest", "spent", "name"])
    def test_programs_turn_its_pages_in_the_same_order(
        self, order: str, cast: Cast, model: Model, signed_in: Browser
    ) -> None:
        client, now = signed_in(cast.oda), timezone.now()
        for name in ("beta", "Alpha", "alpha", "Beta"):
            create_organization(owner=cast.cyd, name=name)
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        use(key, model.name, completion_tokens=100_000, started_at=now, price_at=now)
        take_pending(now=now)
        shown = client.get(reverse("portal:operator_organizations"), {"order": order}).context["rows"]
        told: list[str] = []
        query = {"order": order, "limit": 1}
        while True:
            answer = client.get(reverse("api:operator_organizations"), query).json()
            told += [each["slug"] for each in answer["data"]]
            if answer["next"] is None:
                break
            query["after"] = answer["next"]
        assert told == [each.slug for each, *_ in shown]
        assert client.get(reverse("api:operator_organizations"), {"order": "sideways"}).status_code == 400

    def test_list_is_narrowed_to_a_state(self, cast: Cast, signed_in: Browser) -> None:
        client, page = signed_in(cast.oda), reverse("portal:operator_organizations")
        now, names = timezone.now(), ("active", "suspended", "closing", "closed")
        for number, state in enumerate(names):
            tenant = create_organization(owner=cast.cyd, name=f"{state} ones")
            tenant.suspended_at = now if number else None
            tenant.deletes_at = now if number > 1 else None
            tenant.closed_at = now if number > 2 else None
            tenant.save()
        for state in names:
            answer = client.get(page, {"state": state, "q": "ones"})
            assert [each.name for each, *_ in answer.context["rows"]] == [f"{state} ones"]
        assert "No organization fits" in client.get(page, {"state": "closed", "q": "active"}).content.decode()


class TestInvoiceRun:
    @pytest.fixture
    def period(self, cast: Cast, model: Model) -> str:
        """Last month, with a call in it."""
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        now = timezone.now()
        last_month = now.replace(day=1) - timedelta(days=1)
        use(key, model.name, started_at=last_month, completion_tokens=100_000, price_at=now)
        return f"{last_month:%Y-%m}"

    def test_button_queues_a_run_whose_outcome_is_shown(
        self, cast: Cast, period: str, signed_in: Browser, django_capture_on_commit_callbacks: Any, settings: Any
    ) -> None:
        settings.CELERY_TASK_ALWAYS_EAGER = True
        client = signed_in(cast.oda)
        run = start_run(period=period, is_preview=True, actor=cast.oda)
        page = client.get(reverse("portal:operator_invoices"), {"period": period})
        assert "Waiting for a worker" in page.content.decode()
        execute_run(run.id)
        page = client.get(reverse("portal:operator_invoices"), {"period": period})
        body = page.content.decode()
        assert "every 1s" not in body
        ((invoice, tenant),) = page.context["rows"]
        assert (tenant, invoice.status) == (cast.organization, "draft")
        assert AuditEvent.objects.filter(action="invoice_run.started", actor=cast.oda).exists()

    def test_run_after_the_month_numbers_the_invoice_once(self, cast: Cast, period: str) -> None:
        for finalized in (1, 0):
            run = start_run(period=period, is_preview=False, actor=cast.oda)
            execute_run(run.id)
            execute_run(run.id)
            run.refresh_from_db()
            assert (run.state, run.outcome["finalized"]) == (RunState.FINISHED, finalized)
        assert Invoice.objects.get().number

    def test_members_see_page_and_pdf(self, cast: Cast, period: str, signed_in: Browser) -> None:
        execute_run(start_run(period=period, is_preview=False, actor=cast.oda).id)
        invoice = Invoice.objects.get()
        client, slug = signed_in(cast.ben), cast.organization.slug
        body = client.get(reverse("portal:invoice", args=[slug, invoice.id])).content.decode()
        assert invoice.number in body
        assert "$0.2034" in body
        pdf = client.get(reverse("portal:invoice_pdf", args=[slug, invoice.id]))
        assert pdf.content.startswith(b"%PDF")
        assert pdf.headers["Content-Type"] == "application/pdf"

    def test_odd_month_is_refused(self, cast: Cast, signed_in: Browser) -> None:
        for period in ("2026-13", "soon", ""):
            signed_in(cast.oda).post(reverse("portal:operator_invoice_run"), {"period": period, "action": "run"})
        assert not InvoiceRun.objects.exists()


def run(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue().strip()


@pytest.mark.django_db
class TestCommands:
    def test_bootstrap_makes_the_default_once_and_prints_the_password_once(self) -> None:
        first = run("bootstrap")
        assert run("bootstrap") == ""
        model = Model.objects.get()
        assert (model.name, model.context_tokens, model.is_published) == ("smollm2-135m-instruct", 8192, True)
        price = current_price(model.name, timezone.now())
        assert price
        assert (price.input_nano, price.cached_input_nano, price.output_nano) == (
            400_000_000,
            100_000_000,
            2_030_000_000,
        )
        operator = User.objects.get()
        assert operator.is_staff
        assert operator.check_password(first.split("password: ")[1].split()[0])

    def test_bootstrap_follows_the_engines_address(self, settings: Any) -> None:
        run("bootstrap")
        settings.ENGINE_ADDRESS = "elsewhere:50051"
        run("bootstrap")
        assert Deployment.objects.get().address == "elsewhere:50051"

    def test_bootstrap_leaves_an_operators_choices_alone(self, settings: Any) -> None:
        run("bootstrap")
        Model.objects.update(is_published=False)
        Deployment.objects.create(model=Model.objects.get(), address="second:50051")
        settings.ENGINE_ADDRESS = "elsewhere:50051"
        run("bootstrap")
        assert not Model.objects.get().is_published
        assert Deployment.objects.filter(address="elsewhere:50051").count() == 0

    def test_operator_gets_a_new_password_and_can_sign_in(self) -> None:
        first = run("operator", "--email", "Oda@example.com").split("password: ")[1].split()[0]
        second = run("operator", "--email", "oda@example.com").split("password: ")[1].split()[0]
        operator = User.objects.get()
        assert not operator.check_password(first)
        client = Client()
        client.post(reverse("account_login"), {"login": "oda@example.com", "password": second})
        assert client.get(reverse("portal:operator_home")).status_code == 200
        with pytest.raises(CommandError, match="not an e-mail address"):
            run("operator", "--email", "oda")

    def test_demo_key_prints_a_working_key_and_revokes_the_one_before(self) -> None:
        run("bootstrap")
        first, second = run("demo_key"), run("demo_key")
        assert secrets.looks_valid(second)
        assert find_active(secrets.digest(first)) is None
        found = find_active(secrets.digest(second))
        assert found
        assert ledger.balance_nano(found.organization_id) == 5_000_000_000
        assert ApiKey.objects.filter(revoked_at=None).count() == 1

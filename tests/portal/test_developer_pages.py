"""Pages of developers: the checklist, models with their prices over time, refusals and the way out, one request."""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from billing.usage.models import UsageRecord
from billing.usage.request_ids import new_request_id, next_attempt
from portal.api_keys.models import ApiKey
from portal.api_keys.services import issue
from portal.catalog import status
from portal.catalog.models import Deployment, Model
from portal.catalog.services import change_price
from portal.catalog.status import DeploymentStatus
from portal.operations.services import Refusals, record_refusals
from tests.factories.portal import Cast
from tests.factories.usage import use

Browser = Callable[..., Client]


@pytest.fixture
def key(cast: Cast, model: Model) -> ApiKey:
    return issue(project=cast.project, name="laptop", actor=cast.ada).api_key


def page(cast: Cast, name: str, *arguments: Any) -> str:
    return reverse(f"portal:{name}", args=[cast.organization.slug, *arguments])


def test_the_checklist_ticks_itself_and_says_what_comes_next(cast: Cast, model: Model, signed_in: Browser) -> None:
    client = signed_in(cast.ada)
    part = {"headers": {"hx-request": "true"}, "path": page(cast, "dashboard")}

    def done() -> list[bool]:
        return [step.is_done for step in client.get(**part).context["onboarding"].steps]

    assert done() == [True, False, False, False]
    assert "hx-trigger" in client.get(**part).content.decode()
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    assert done() == [True, True, False, False]
    request_id = use(key, model.name, started_at=timezone.now(), ttft_ms=None)
    assert done() == [True, True, True, False], "a call without a first token in time is not seen live"
    use(key, model.name, started_at=timezone.now())
    text = client.get(**part).content.decode()
    assert "You are set up" in text
    assert "hx-trigger" not in text, "it asks no more"
    assert str(request_id) in text
    assert "You are set up" not in client.get(page(cast, "dashboard")).content.decode()


def test_the_quick_start_points_coding_agents_here(cast: Cast, model: Model, signed_in: Browser, settings: Any) -> None:
    settings.PUBLIC_URL, settings.API_BASE_URL = "https://ai.example.com", "https://ai.example.com/v1"
    Model.objects.filter(id=model.id).update(context_tokens=65536, max_output_tokens=65536)
    answer = signed_in(cast.ada).get(page(cast, "quickstart"))
    codes = {snippet.name: snippet.code for snippet in answer.context["agents"]}
    assert all(model.name in code for code in codes.values())
    assert 'ANTHROPIC_BASE_URL="https://ai.example.com"' in codes["claude-code"]
    assert "CLAUDE_CODE_MAX_OUTPUT_TOKENS=16384" in codes["claude-code"]
    codex = tomllib.loads(codes["codex"])
    assert codex["model_providers"][codex["model_provider"]]["base_url"] == "https://ai.example.com/v1"
    assert codex["model_context_window"] == 65536
    opencode = json.loads(codes["opencode"])["provider"]["tokenfactory"]
    assert opencode["models"][model.name]["limit"] == {"context": 65536, "output": 16384}
    assert escape(codes["aider"]) in answer.content.decode()


def test_the_quick_start_has_agents_before_there_is_a_model(cast: Cast, signed_in: Browser) -> None:
    answer = signed_in(cast.ada).get(page(cast, "quickstart"))
    assert all("your-model" in snippet.code for snippet in answer.context["agents"])


def test_a_new_key_comes_with_a_call_that_has_it(cast: Cast, model: Model, signed_in: Browser) -> None:
    answer = signed_in(cast.ben).post(page(cast, "api_key_new"), {"name": "laptop", "project": cast.project.id})
    secret = answer.context["issued"].secret
    assert f'export API_KEY="{secret}"' in answer.context["first_call"]
    assert model.name in answer.context["first_call"]


class TestModel:
    def test_prices_are_steps_over_time(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        """A campaign in between gives way to the price before it."""
        now = timezone.now()
        begins, ends = now + timedelta(days=1), now + timedelta(days=2)
        change_price(
            model=model,
            input_nano=200_000_000,
            cached_input_nano=None,
            output_nano=1_000_000_000,
            effective_from=begins,
            effective_until=ends,
            actor=None,
        )
        chart = signed_in(cast.ada).get(page(cast, "model", model.name)).context["price_chart"]
        assert chart["series"] == {"input": [0.4, 0.2, 0.4], "cached": [0.1, 0.2, 0.1], "output": [2.03, 1.0, 2.03]}
        assert chart["times"][1:] == [int(begins.timestamp()), int(ends.timestamp())]
        assert chart["times"][0] <= chart["now"] < chart["times"][1]

    @pytest.mark.parametrize(
        ("health", "state"), [([], "unknown"), ([True], "up"), ([False], "down"), ([True, False], "partly")]
    )
    def test_its_state_is_what_deployments_said_lately(self, health: list[bool], state: str, model: Model) -> None:
        first = Deployment.objects.get(model=model)
        second = Deployment.objects.create(model=model, address="127.0.0.1:50052")
        for deployment, is_healthy in zip((first, second), health, strict=False):
            status.record(deployment.id, DeploymentStatus(is_healthy=is_healthy, checked_at=timezone.now()))
        answer = Client().get(reverse("portal:public_model", args=[model.name]))
        assert answer.context["offer"].state == state
        Deployment.objects.update(is_enabled=False)
        assert Client().get(reverse("portal:public_model", args=[model.name])).context["offer"].state == "none"

    def test_one_that_is_not_published_is_not_there(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        assert signed_in(cast.ada).get(page(cast, "model", "nobody/knows")).status_code == 404
        Model.objects.update(is_published=False)
        assert signed_in(cast.ada).get(page(cast, "model", model.name)).status_code == 404
        assert Client().get(reverse("portal:public_model", args=[model.name])).status_code == 404


def test_refusals_say_why_and_lead_to_the_way_out(cast: Cast, model: Model, signed_in: Browser) -> None:
    minute = timezone.now().replace(second=0, microsecond=0)
    elsewhere = cast.organization.id + 1
    record_refusals(
        "gateway",
        [
            Refusals(minute, "insufficient_quota", cast.organization.id, 7),
            Refusals(minute, "rate_limit_requests", elsewhere, 5),
            Refusals(minute - timedelta(hours=3), "a_code_of_tomorrow", cast.organization.id, 2),
            Refusals(minute - timedelta(hours=30), "invalid_json", cast.organization.id, 9),
        ],
    )
    client = signed_in(cast.ben)
    limits = client.get(page(cast, "limits"))
    assert [(each.code, each.count) for each in limits.context["refused"]] == [
        ("insufficient_quota", 7),
        ("a_code_of_tomorrow", 2),
    ]
    text = limits.content.decode()
    assert "No credit, or a spend limit is reached" in text
    assert f'href="{page(cast, "billing")}">See the credit' in text
    home = client.get(page(cast, "dashboard")).content.decode()
    assert "7 calls were refused in the last hour" in home
    assert "2 calls were refused" not in home


class TestRequest:
    def test_attempts_price_version_and_reason(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = new_request_id()
        ids = iter([first, next_attempt(first)])
        monkeypatch.setattr(uuid, "uuid4", lambda: next(ids))
        now = timezone.now()
        use(key, model.name, started_at=now, status="failed", ttft_ms=None, completion_tokens=0)
        use(key, model.name, started_at=now)
        monkeypatch.undo()
        served = signed_in(cast.ben).get(page(cast, "request", next_attempt(first)))
        assert [row.request_id for row in served.context["attempts"]] == [first, next_attempt(first)]
        assert f"Price version {UsageRecord.objects.get(request_id=first).price_id}" in served.content.decode()
        failed = signed_in(cast.ben).get(page(cast, "request", first)).content.decode()
        assert "Model is away" in failed
        assert f'href="{page(cast, "catalog")}">See the models' in failed

    @pytest.mark.parametrize("form", ["{}", "chatcmpl-{.hex}", "resp_{.hex}", "msg_{.hex}", " {} "])
    def test_it_is_found_by_its_id_as_clients_print_it(
        self, form: str, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> None:
        request_id = use(key, model.name, started_at=timezone.now())
        client = signed_in(cast.ben)
        answer = client.get(page(cast, "requests"), {"request_id": form.format(request_id)})
        assert (answer.status_code, answer.url) == (302, page(cast, "request", request_id))

    def test_another_organizations_is_not_found(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> None:
        request_id = use(key, model.name, started_at=timezone.now())
        address = reverse("portal:requests", args=[cast.cyd.memberships.get().organization.slug])
        answer = signed_in(cast.cyd).get(address, {"request_id": str(request_id)})
        assert answer.status_code == 200
        assert "No request of this organization has the id" in answer.content.decode()
        assert signed_in(cast.ben).get(page(cast, "requests"), {"request_id": "<b>"}).status_code == 200

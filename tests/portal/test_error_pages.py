"""Requests that no view can read: each is refused with its reason, its limit and a way out, on a page or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.operator.models import InvoiceRun
from tests.factories.portal import Cast

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]


def test_a_name_that_is_not_ours_is_told() -> None:
    page = Client().get("/accounts/login/", headers={"host": "evil.example"})
    assert page.status_code == 400
    assert "evil.example" in page.content.decode()
    assert "PUBLIC_URL" in page.content.decode()
    answer = Client().get("/api/me", headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert "PUBLIC_URL" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["operator_organizations", "operator_run"])
def test_a_nul_in_a_search_is_named(name: str, cast: Cast, signed_in: Browser, run_id: int) -> None:
    address = reverse(f"portal:{name}", args=[run_id] if name == "operator_run" else [])
    browser = signed_in(cast.oda)
    assert browser.get(address, {"q": "ada"}).status_code == 200
    page = browser.get(address, {"q": "ada\0"})
    assert page.status_code == 400
    assert "The field “q” holds a NUL character" in page.content.decode()


@pytest.fixture
def run_id(cast: Cast) -> int:
    return InvoiceRun.objects.create(period="2020-01", is_preview=True, started_by=cast.oda).id


def test_a_nul_in_a_form_is_named_and_nothing_changes(cast: Cast, signed_in: Browser) -> None:
    address = reverse("portal:project_archive", args=[cast.organization.slug, cast.project.slug])
    page = signed_in(cast.ada).post(address, {"confirmation": cast.project.name, "reason": "a\0b"})
    assert page.status_code == 400
    assert "“reason”" in page.content.decode()
    cast.project.refresh_from_db()
    assert cast.project.archived_at is None


def test_what_is_too_large_is_refused_with_the_limit(cast: Cast, signed_in: Browser, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100 * 1024
    browser = signed_in(cast.ada)
    large = "x" * 200 * 1024
    page = browser.post(reverse("portal:settings", args=[cast.organization.slug]), {"name": large})
    assert page.status_code == 400
    assert "100 KiB" in page.content.decode()
    answer = browser.post(f"/api/organizations/{cast.organization.slug}/projects", {"name": large}, "application/json")
    assert answer.status_code == 413
    assert "100 KiB" in answer.json()["error"]["message"]


def test_too_many_fields_are_refused_with_the_limit(cast: Cast, signed_in: Browser) -> None:
    fields = {f"field{number}": "" for number in range(1001)}
    page = signed_in(cast.ada).post(reverse("portal:settings", args=[cast.organization.slug]), fields)
    assert page.status_code == 400
    assert "more than 1000 fields" in page.content.decode()


def test_programs_are_told_in_json() -> None:
    answer = Client().get("/api/organizations/a b/nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert "/api/docs" in answer.json()["error"]["message"]
    assert "There is nothing here" in Client().get("/nowhere").content.decode()


def test_a_failure_is_told_in_json_too(cast: Cast, signed_in: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("rest_framework.views.APIView.initial", fail)
    browser = signed_in(cast.ada)
    browser.raise_request_exception = False
    answer = browser.get("/api/me")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "server_error"


@pytest.mark.parametrize("body", ["[1]", "null"])
def test_a_body_of_another_kind_names_no_field(body: str, cast: Cast, signed_in: Browser) -> None:
    address = f"/api/organizations/{cast.organization.slug}/projects"
    answer = signed_in(cast.ada).post(address, body, "application/json")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] is None


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("settings/projects/default/restore", "settings"),
        ("keys/7/secrets/8/end", "keys/7"),
        ("members/invitations/7/withdraw", "members"),
        ("alerts/webhooks/7", "alerts/webhooks"),
        ("limits/try", "limits"),
    ],
)
def test_an_address_for_forms_leads_to_their_page(address: str, page: str, cast: Cast, signed_in: Browser) -> None:
    browser, home = signed_in(cast.ada), reverse("portal:dashboard", args=[cast.organization.slug])
    answer = browser.get(home + address)
    assert (answer.status_code, answer.url) == (302, home + page)
    assert browser.put(home + address).status_code == 405
    # Programs have addresses of their own, and are told the method.
    assert browser.get(f"/api{home.replace('/o/', '/organizations/')}restore").status_code == 405


def test_too_many_tries_are_told_on_a_page(db: None) -> None:
    browser = Client(REMOTE_ADDR="203.0.113.77")
    address = reverse("account_reset_password")
    answers = [browser.post(address, {"email": f"nobody{number}@example.com"}) for number in range(25)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused, "nothing was refused within 25 tries"
    assert all("Wait some minutes and try again" in answer.content.decode() for answer in refused)

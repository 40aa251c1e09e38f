"""From which web pages an organization's keys may be used: what is taken, who is told, what is written down."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from portal.audit.models import AuditEvent
from portal.organizations.origins import ORIGINS_LIMIT, parse_origin
from portal.organizations.selectors import all_allowed_origins
from portal.organizations.services import create_organization
from tests.factories.portal import Cast, make_cast, make_user

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://App.Example.com", "https://app.example.com"),
        (" https://app.example.com:443/ ", "https://app.example.com"),
        ("https://app.example.com:8443", "https://app.example.com:8443"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://[::1]:5173", "http://[::1]:5173"),
    ],
)
def test_an_origin_is_kept_as_browsers_write_it(text: str, origin: str) -> None:
    assert parse_origin(text) == origin
    assert parse_origin(origin) == origin


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("*", "every site"),
        ("https://*.example.com", "every site"),
        ("null", "every site"),
        ("app.example.com", "no origin"),
        ("ftp://app.example.com", "no origin"),
        ("https://", "no origin"),
        ("https://ada@app.example.com", "no origin"),
        ("https://app.example.com:99999", "no origin"),
        ("https://" + "a" * 300, "no origin"),
        ("https://app.example.com/path", "more than an origin"),
        ("https://app.example.com?x=1", "more than an origin"),
        ("http://app.example.com", "not encrypted"),
        ("http://localhost.example.com", "not encrypted"),
    ],
)
def test_what_is_no_origin_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_origin(text)


@pytest.fixture
def cast() -> Cast:
    return make_cast()


def save(client: Client, cast: Cast, text: str) -> int:
    return client.post(reverse("portal:origins", args=[cast.organization.slug]), {"origins": text}).status_code


def test_the_settings_page_keeps_origins_and_writes_them_down(cast: Cast, client: Client) -> None:
    client.force_login(cast.ada, backend="django.contrib.auth.backends.ModelBackend")
    assert save(client, cast, "https://b.example\nhttp://localhost:3000, https://b.example/") == 302
    cast.organization.refresh_from_db()
    assert cast.organization.allowed_origins == ["https://b.example", "http://localhost:3000"]
    page = client.get(reverse("portal:settings", args=[cast.organization.slug])).content.decode()
    assert "https://b.example\nhttp://localhost:3000</textarea>" in page
    event = AuditEvent.objects.get(action="organization.origins_changed")
    assert (event.before, event.after) == (
        {"allowed origins": None},
        {"allowed origins": "https://b.example, http://localhost:3000"},
    )
    assert save(client, cast, "https://b.example\nhttp://localhost:3000") == 302
    assert AuditEvent.objects.filter(action="organization.origins_changed").count() == 1
    assert save(client, cast, "") == 302
    assert all_allowed_origins() == set()


def test_a_wrong_origin_is_told_and_changes_nothing(cast: Cast, client: Client) -> None:
    client.force_login(cast.ada, backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("portal:origins", args=[cast.organization.slug])
    answer = client.post(address, {"origins": "https://ok.example\nhttp://shop.example"})
    assert answer.status_code == 400
    assert "not encrypted" in answer.content.decode()
    many = "\n".join(f"https://n{number}.example" for number in range(ORIGINS_LIMIT + 1))
    assert save(client, cast, many) == 400
    assert all_allowed_origins() == set()


def test_all_origins_are_read_with_one_query(cast: Cast, django_assert_num_queries: object) -> None:
    for number in range(3):
        organization = create_organization(owner=make_user(f"owner-{number}"), name=f"O{number}")
        organization.allowed_origins = ["https://same.example", f"https://{number}.example"]
        organization.save()
    with django_assert_num_queries(1):  # type: ignore[operator]
        assert all_allowed_origins() == {"https://same.example", *(f"https://{number}.example" for number in range(3))}

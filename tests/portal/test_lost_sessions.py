"""A session that ends while a page is open: its parts say so, and a form leads back to the page that it is on."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import Cast

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
PART = {"HX-Request": "true"}


@pytest.mark.parametrize("name", ["dashboard", "exports", "limit_gauges"])
def test_a_part_that_a_page_asks_for_is_refused_and_the_page_stays(name: str, cast: Cast, signed_in: Browser) -> None:
    address = reverse(f"portal:{name}", args=[cast.organization.slug])
    browser = signed_in(cast.ada)
    assert browser.get(address, headers=PART).status_code == 200
    browser.logout()
    ended = browser.get(address, headers=PART)
    assert (ended.status_code, ended.content) == (401, b"")
    assert "HX-Refresh" not in ended.headers
    assert browser.get(address).url == f"/accounts/login/?next={address}"


def test_a_part_is_refused_to_an_outsider_too(cast: Cast, signed_in: Browser) -> None:
    address = reverse("portal:limit_gauges", args=[cast.organization.slug])
    assert signed_in(cast.cyd).get(address, headers=PART).status_code == 404


@pytest.mark.parametrize("page", ["limits", "limits?model=a"])
def test_a_form_leads_back_to_its_page_and_says_that_nothing_changed(page: str, cast: Cast, signed_in: Browser) -> None:
    home = f"http://testserver/o/{cast.organization.slug}/"
    browser = signed_in(None)
    address = reverse("portal:member_remove", args=[cast.organization.slug, 1])
    answer = browser.post(address, headers={"referer": home + page})
    assert _next(answer.url) == urlsplit(home).path + page
    assert "What you typed is kept" in browser.get(answer.url).content.decode()


@pytest.mark.parametrize("page", ["", "http://evil.example/o/analytical-engines/limits", "//evil.example"])
def test_nobody_is_led_out_of_the_portal(page: str, cast: Cast, signed_in: Browser) -> None:
    address = reverse("portal:limits", args=[cast.organization.slug])
    answer = signed_in(None).post(address, headers={"referer": page} if page else {})
    assert _next(answer.url) == reverse("portal:home")


def test_a_form_that_expired_leads_back_to_its_page(cast: Cast) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(cast.ada, backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("portal:limits", args=[cast.organization.slug])
    page = browser.post(address, {"amount": "1"}, headers={"referer": f"http://testserver{address}"})
    assert page.status_code == 403
    assert f'href="{address}"' in page.content.decode()


def test_limits_that_came_or_went_since_are_told(cast: Cast, signed_in: Browser) -> None:
    def gauges(shown: str) -> str:
        return browser.get(address, {"shown": shown}, headers=PART).content.decode()

    browser = signed_in(cast.ben)
    address = reverse("portal:limit_gauges", args=[cast.organization.slug])
    told = "Limits were set or removed since"
    assert told not in gauges("")
    change_quota(
        organization=cast.organization, kind=QuotaKind.REQUESTS, window=Window.MINUTE, limit=60, actor=cast.ada
    )
    number = str(Quota.objects.get().id)
    assert told in gauges("")
    assert f"gauge-{number}" not in gauges(""), "a gauge without a place on the page"
    assert told not in gauges(number)
    assert f"gauge-{number}" in gauges(number)
    assert told in gauges(f"{number},999")


def _next(address: str) -> str:
    parts = urlsplit(address)
    assert parts.path == reverse(settings.LOGIN_URL)
    return parse_qs(parts.query)["next"][0]

"""The support admin: every page opens, nothing is written past the services, and no secret is shown."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin
from django.test import Client
from django.urls import reverse

from config.support_admin import UNFOLD
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from tests.factories.portal import Cast

Browser = Callable[..., Client]
# Saved by the catalogue's services.
WRITTEN = {"portal.model", "portal.deployment"}


def test_every_page_opens_and_is_in_the_navigation(cast: Cast, signed_in: Browser) -> None:
    browser = signed_in(cast.oda)
    lists = {
        reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") for model in admin.site._registry
    }
    assert len(lists) > 20
    assert {address: browser.get(address).status_code for address in lists} == dict.fromkeys(lists, 200)
    shown = {str(item["link"]) for group in UNFOLD["SIDEBAR"]["navigation"] for item in group["items"]}
    assert shown - lists == {reverse("portal:operator_home")}
    assert lists <= shown


def test_only_what_a_service_saves_can_be_added(cast: Cast, signed_in: Browser) -> None:
    browser = signed_in(cast.oda)
    for model in admin.site._registry:
        address = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
        expected = 200 if model._meta.label_lower in WRITTEN else 403
        assert browser.get(address).status_code == expected, model


def test_suspending_goes_through_the_service(cast: Cast, signed_in: Browser) -> None:
    answer = signed_in(cast.oda).post(
        reverse("admin:portal_organization_changelist"),
        {"action": "suspend", "_selected_action": [cast.organization.id]},
    )
    assert answer.status_code == 302
    cast.organization.refresh_from_db()
    assert cast.organization.suspended_at is not None
    assert AuditEvent.objects.filter(organization=cast.organization, reason="Support admin", actor=cast.oda).exists()


def test_no_secret_is_shown(cast: Cast, signed_in: Browser) -> None:
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    browser = signed_in(cast.oda)
    for address, secret in (
        (reverse("admin:portal_user_change", args=[cast.ada.id]), cast.ada.password),
        (reverse("admin:portal_apikey_change", args=[key.id]), key.digest),
    ):
        page = browser.get(address)
        assert page.status_code == 200
        assert secret not in page.content.decode()


def test_members_are_sent_away(cast: Cast, signed_in: Browser) -> None:
    assert signed_in(cast.ada).get(reverse("admin:index")).status_code in (302, 403, 404)

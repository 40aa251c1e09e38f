"""The support admin: every page opens, nothing is written past the services, and no secret is shown."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin
from django.db.models import Model
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from billing.accounts.selectors import account_of
from billing.ledger import selectors as ledger
from billing.money import format_nano
from config.support_admin import UNFOLD
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog.models import Model as CatalogModel
from portal.quotas.models import Quota
from portal.quotas.services import QuotaImposed
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


def ask(browser: Client, row: Model, act: str, **answers: object) -> HttpResponse:
    """Open the dialog of an act on a row's page, and send it with these answers beside what it began with."""
    name = f"admin:{row._meta.app_label}_{row._meta.model_name}_{act}"
    address = reverse(name, args=[row.pk])
    form = browser.get(address).context["form"]
    begun = {field.html_name: field.value() for field in form if field.value() is not None}
    return browser.post(address, begun | answers)


def test_credit_is_given_once_for_a_dialog_with_a_reason(cast: Cast, signed_in: Browser) -> None:
    browser, before = signed_in(cast.oda), ledger.balance(cast.organization.id).credit_nano
    assert b"field is required" in ask(browser, cast.organization, "give_credit", amount="5").content
    address = reverse("admin:portal_organization_give_credit", args=[cast.organization.id])
    form = browser.get(address).context["form"]
    answers = {field.html_name: field.value() for field in form} | {"amount": "12.50", "reason": "Outage"}
    for _ in range(2):
        assert browser.post(address, answers).status_code == 302
    assert ledger.balance(cast.organization.id).credit_nano - before == 12_500_000_000
    event = AuditEvent.objects.get(action="credit.granted", organization=cast.organization, actor=cast.oda)
    assert event.reason == "Outage"
    page = browser.get(reverse("admin:portal_organization_change", args=[cast.organization.id]))
    assert format_nano(ledger.balance(cast.organization.id).available_nano, "USD") in page.content.decode()


def test_terms_and_suspension_change_through_the_services(cast: Cast, signed_in: Browser) -> None:
    browser = signed_in(cast.oda)
    ask(browser, cast.organization, "change_terms", credit_limit="100", reason="Contract")
    assert account_of(cast.organization.id).credit_limit_nano == 100 * 10**9
    for act, is_suspended in (("suspend", True), ("resume", False)):
        page = browser.get(reverse("admin:portal_organization_change", args=[cast.organization.id])).content.decode()
        assert (f"/{cast.organization.id}/suspend/" in page, f"/{cast.organization.id}/resume/" in page) == (
            is_suspended,
            not is_suspended,
        )
        ask(browser, cast.organization, act, reason=f"To {act}")
        cast.organization.refresh_from_db()
        assert cast.organization.is_suspended is is_suspended
    reasons = AuditEvent.objects.filter(organization=cast.organization, actor=cast.oda).order_by("id")
    assert list(reasons.values_list("reason", flat=True)) == ["Contract", "To suspend", "To resume"]


def test_a_key_is_limited_and_revoked_with_a_reason(cast: Cast, model: CatalogModel, signed_in: Browser) -> None:
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    browser = signed_in(cast.oda)
    assert b"whole number" in ask(browser, key, "set_limit", amount="many", reason="Abuse").content
    assert ask(browser, key, "set_limit", what="tokens:day", amount="1,000", reason="Abuse").status_code == 302
    limit = Quota.objects.get(api_key=key)
    assert (limit.kind, limit.window, limit.limit, limit.organization) == ("tokens", "day", 1000, cast.organization)
    assert ask(browser, limit, "remove", reason="Cleared up").status_code == 302
    assert not Quota.objects.filter(api_key=key).exists()
    assert ask(browser, key, "revoke", reason="Leaked").status_code == 302
    key.refresh_from_db()
    assert key.revoked_at is not None
    mine = AuditEvent.objects.filter(organization=cast.organization, actor=cast.oda).order_by("id")
    assert [event.reason for event in mine] == ["Abuse", "Cleared up", "Leaked"]
    assert mine[1].before
    # Nothing more can be done to it, and its history is the audit log.
    page = browser.get(reverse("admin:portal_apikey_change", args=[key.id])).content.decode()
    assert f"/{key.id}/revoke/" not in page
    history = browser.get(reverse("admin:portal_apikey_history", args=[key.id]), follow=True).content.decode()
    assert "api_key.revoked" in history
    assert "Leaked" in history


def test_a_limit_above_what_a_template_imposes_is_refused_at_its_field(
    cast: Cast, model: CatalogModel, signed_in: Browser
) -> None:
    imposed = Quota.objects.create(
        organization=cast.organization, kind="requests", window="minute", limit=10, mode="hard", is_imposed=True
    )
    browser = signed_in(cast.oda)
    answer = ask(browser, cast.organization, "set_limit", what="requests:minute", amount="11", reason="More")
    assert b"Set it no higher" in answer.content
    assert str(QuotaImposed()) in ask(browser, imposed, "remove", reason="Away").content.decode()
    assert Quota.objects.get() == imposed


def test_a_limit_of_spend_is_money_in_the_list_and_on_its_page(cast: Cast, signed_in: Browser) -> None:
    limit = Quota.objects.create(organization=cast.organization, kind="spend", window="month", limit=2_500_000_000)
    browser = signed_in(cast.oda)
    for address in (reverse("admin:portal_quota_changelist"), reverse("admin:portal_quota_change", args=[limit.id])):
        page = browser.get(address).content.decode()
        assert "$2.50" in page
        assert "2500000000" not in page


def test_members_have_none_of_its_acts(cast: Cast, signed_in: Browser) -> None:
    address = reverse("admin:portal_organization_give_credit", args=[cast.organization.id])
    before = ledger.balance(cast.organization.id)
    for method in ("get", "post"):
        answer = getattr(signed_in(cast.ada), method)(address, {"amount": "5", "reason": "Mine"})
        assert answer.status_code in (302, 403, 404)
    assert ledger.balance(cast.organization.id) == before


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

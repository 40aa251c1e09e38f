"""Every address of pages and management API, as every role, an outsider, an operator and nobody.

The table below is written by hand, and not derived from `portal/permissions.py`: the two must agree. An address that is
not in it fails the test, so that nobody adds one without saying who may open it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, resolve, reverse

from api import urls as api_urls
from portal import urls
from portal.organizations.roles import Role
from tests.portal.world import World, make_world, unknown

pytestmark = pytest.mark.django_db

LETTERS = {"o": "owner", "a": "admin", "b": "billing", "d": "developer", "v": "viewer"}
ALL = "oabdv"
# Who may GET, who may POST; None where the address does not know the method.
PAGES: dict[str, tuple[str | None, str | None]] = {
    "dashboard": (ALL, None),
    "quickstart": (ALL, None),
    "playground": ("oad", None),
    "playground_share_new": (None, "oad"),
    "playground_shared": (ALL, None),
    "playground_share_end": (None, "oad"),
    "catalog": (ALL, None),
    "model": (ALL, None),
    "api_keys": (ALL, None),
    "api_key_new": (None, "oad"),
    "api_key": (ALL, "oad"),
    "api_key_rotate": (None, "oad"),
    "retired_secret_end": (None, "oad"),
    "api_key_revoke": (None, "oad"),
    "management_keys": ("oa", "oa"),
    "management_key_revoke": (None, "oa"),
    "usage": (ALL, None),
    "usage_chart": (ALL, None),
    "requests": (ALL, None),
    "request": (ALL, None),
    "billing": (ALL, None),
    "ledger": (ALL, None),
    "billing_details": ("oab", "oab"),
    "invoice": (ALL, None),
    "invoice_pdf": (ALL, None),
    "invoice_annex": (ALL, None),
    "credit_note_pdf": (ALL, None),
    "credit": ("oab", None),
    "top_up_new": (None, "oab"),
    "top_up": ("oab", None),
    "promo_redeem": (None, "oab"),
    "auto_recharge": (None, "oab"),
    "payment_page": ("oab", None),
    "exports": (ALL, ALL),
    "export_download": (ALL, None),
    "limits": (ALL, "oa"),
    "limit_gauges": (ALL, None),
    "limit_try": (None, "oa"),
    "limit_remove": (None, "oa"),
    "members": (ALL, "oa"),
    "member_role": (None, "oa"),
    "member_remove": (None, "oa"),
    "invitation_withdraw": (None, "oa"),
    "audit": ("oav", None),
    "audit_export": ("oav", None),
    "alerts": (ALL, None),
    "alert_rule_new": (None, "oab"),
    "alert_rule_remove": (None, "oab"),
    "webhooks": (ALL, "oab"),
    "webhook_change": (None, "oab"),
    "webhook_rotate": (None, "oab"),
    "webhook_test": (None, "oab"),
    "webhook_remove": (None, "oab"),
    "deliveries": (ALL, None),
    "delivery": (ALL, None),
    "delivery_resend": (None, "oab"),
    "settings": (ALL, "oa"),
    "origins": (None, "oa"),
    "responses_kept": (None, "oa"),
    "two_factor": (None, "oa"),
    "transfer": (None, "o"),
    "organization_delete": (None, "o"),
    "organization_restore": (None, "o"),
    "project_new": (None, "oa"),
    "project_rename": (None, "oa"),
    "project_archive": (None, "oa"),
    "project_restore": (None, "oa"),
}
# Who acts on a row that is not there reads so on the list that it was on.
TOLD_WHEN_GONE = {
    "limit_remove",
    "member_role",
    "member_remove",
    "invitation_withdraw",
    "alert_rule_remove",
    "webhook_change",
    "webhook_rotate",
    "webhook_test",
    "webhook_remove",
    "playground_share_end",
}
OPERATOR_POST_ONLY = {
    "operator_act",
    "operator_act_end",
    "operator_credit",
    "operator_terms",
    "operator_suspension",
    "operator_price",
    "operator_discount",
    "operator_any_discount",
    "operator_discount_end",
    "operator_tiers",
    "operator_period_close",
    "operator_invoice_run",
    "operator_invoice_retry",
    "operator_invoice_credit",
    "operator_invoice_payment",
    "operator_invoice_void",
    "operator_invoice_write_off",
    "operator_refund",
    "operator_fee_new",
    "operator_fee_end",
    "operator_exemption",
    "operator_promo_code_switch",
    "operator_event_replay",
    "operator_key_revoke",
    "operator_limit_template_default",
    "operator_limit_template_retire",
    "operator_limit_template_withdraw",
}
PUBLIC = {"front", "models"}
# Of the management API: who may call which method of an organization's paths.
REST: dict[str, dict[str, str]] = {
    "organization": {"get": ALL, "patch": "oa", "delete": "o"},
    "organization_restore": {"post": "o"},
    "organization_transfer": {"post": "o"},
    "members": {"get": ALL},
    "member": {"patch": "oa", "delete": "oa"},
    "invitations": {"get": "oa", "post": "oa"},
    "invitation": {"delete": "oa"},
    "projects": {"get": ALL, "post": "oa"},
    "project": {"patch": "oa"},
    "project_archive": {"post": "oa"},
    "project_restore": {"post": "oa"},
    "keys": {"get": ALL, "post": "oad"},
    "key": {"get": ALL, "patch": "oad", "delete": "oad"},
    "key_rotate": {"post": "oad"},
    "retired_secrets": {"get": ALL},
    "retired_secret": {"delete": "oad"},
    "management_keys": {"get": "oa"},
    "management_key": {"delete": "oa"},
    "limits": {"get": ALL, "post": "oa"},
    "limit": {"delete": "oa"},
    "limit_trial": {"post": "oa"},
    "audit": {"get": "oav"},
    "audit_file": {"get": "oav"},
    "usage": {"get": ALL},
    "usage_summary": {"get": ALL},
    "usage_record": {"get": ALL},
    "prices": {"get": ALL},
    "credit": {"get": ALL},
    "ledger": {"get": ALL},
    "invoices": {"get": ALL},
    "invoice": {"get": ALL},
    "invoice_pdf": {"get": ALL},
    "invoice_usage": {"get": ALL},
    "credit_notes": {"get": ALL},
    "credit_note_pdf": {"get": ALL},
    "top_ups": {"get": "oab", "post": "oab"},
    "top_up": {"get": "oab"},
    "promo_codes": {"post": "oab"},
    "auto_recharge": {"get": "oab", "put": "oab"},
    "payment_page": {"post": "oab"},
    "exports": {"get": ALL, "post": ALL},
    "export": {"get": ALL},
    "export_file": {"get": ALL},
    "billing_details": {"get": "oab", "patch": "oab"},
    "alert_rules": {"get": ALL, "post": "oab"},
    "alert_rule": {"delete": "oab"},
    "alerts": {"get": ALL},
    "webhooks": {"get": ALL, "post": "oab"},
    "webhook": {"patch": "oab", "delete": "oab"},
    "webhook_secret": {"post": "oab"},
    "webhook_test": {"post": "oab"},
    "deliveries": {"get": ALL},
    "delivery": {"get": ALL},
    "delivery_resend": {"post": "oab"},
}
REST_CALLS = [(name, method) for name, methods in REST.items() for method in methods]
# Of the operator's paths: the methods, and in capitals those that an operator key which only reads may call.
OPERATOR_REST: dict[str, str] = {
    "operator_overview": "GET",
    "operator_organizations": "GET",
    "operator_organization": "GET",
    "operator_credit": "post",
    "operator_terms": "put",
    "operator_suspension": "put",
    "operator_money": "GET",
    "operator_refund": "post",
    "operator_fees": "post",
    "operator_fee_end": "post",
    "operator_exemption": "put",
    "operator_models": "GET post",
    "operator_model": "GET patch",
    "operator_prices": "GET post",
    "operator_price_preview": "POST",
    "operator_model_deployments": "post",
    "operator_deployments": "GET",
    "operator_deployment": "GET patch",
    "operator_discounts": "GET post",
    "operator_discount_preview": "POST",
    "operator_discount_end": "post",
    "operator_agreed_prices": "GET",
    "operator_volume_tiers": "GET put",
    "operator_volume_tiers_preview": "POST",
    "operator_invoices": "GET",
    "operator_month": "GET",
    "operator_invoice": "GET",
    "operator_invoice_pdf": "GET",
    "operator_invoice_usage": "GET",
    "operator_invoice_credit_notes": "post",
    "operator_invoice_payment": "post",
    "operator_invoice_void": "post",
    "operator_invoice_write_off": "post",
    "operator_invoice_runs": "GET post",
    "operator_invoice_run": "GET",
    "operator_invoice_run_outcomes": "GET",
    "operator_invoice_run_retry": "post",
    "operator_credit_note_pdf": "GET",
    "operator_promo_codes": "GET post",
    "operator_promo_code": "patch",
    "operator_tax_rates": "GET post",
    "operator_payment_events": "GET",
    "operator_payment_event_replay": "post",
    "operator_limit_templates": "GET post",
    "operator_limit_template": "GET put",
    "operator_limit_template_default": "put",
    "operator_limit_template_retirement": "put",
    "operator_limit_template_uses": "GET",
    "operator_limit_template_preview": "POST",
    "operator_limit_template_runs": "GET post",
    "operator_limit_template_run": "GET",
    "operator_organization_limit_template": "GET put delete",
    "operator_operations": "GET",
    "operator_capacity": "GET",
    "operator_reconciliation": "GET",
    "operator_compared_call": "GET",
    "operator_reconciliation_file": "GET",
    "operator_period_closes": "post",
    "operator_retention": "GET",
    "operator_audit": "GET",
    "operator_audit_file": "GET",
    "operator_keys": "GET",
    "operator_key": "delete",
}
OPERATOR_CALLS = [(name, method) for name, methods in OPERATOR_REST.items() for method in methods.split()]


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """Made once; what a test changes is rolled back behind it, and nothing of it is ever committed."""
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch, transaction.atomic():
        yield make_world(patch)
        transaction.set_rollback(True)


def send(client: Client, method: str, address: str) -> int:
    """The status; what the call changed is taken back."""
    with transaction.atomic():
        call = getattr(client, method)
        is_json = address.startswith("/api/") and method != "get"
        answer = call(address, {}, content_type="application/json") if is_json else call(address)
        transaction.set_rollback(True)
    return int(answer.status_code)


def address_of(pattern: URLPattern, arguments: dict[str, Any], namespace: str) -> str:
    fields = [*pattern.pattern.converters]
    if pattern in urls.organization_pages or namespace == "api":
        fields.append("slug")
    return reverse(f"{namespace}:{pattern.name}", kwargs={field: arguments[field] for field in set(fields)})


def named(patterns: list[URLPattern | URLResolver]) -> dict[str, URLPattern]:
    return {pattern.name or "": pattern for pattern in patterns if isinstance(pattern, URLPattern)}


MEMBER_PAGES = named(urls.organization_pages)
OPERATOR_PAGES = named(urls.operator_pages)
API_PATHS = named(api_urls.organization_paths) | {
    "organization": next(each for each in named(api_urls.urlpatterns).values() if each.name == "organization")
}


OPERATOR_PATHS = named(api_urls.operator_paths)
# Pages that have a form of their own below them: neither the dashboard nor a page of no organization.
MEMBER_GET = {name for name, (get, _) in PAGES.items() if get is not None} - {"dashboard"}


def page_led_to(client: Client, address: str) -> str:
    """The name of the page that a browser ends at when it opens an address that takes only what a form sends."""
    answer = client.get(address, follow=True)
    assert answer.redirect_chain, f"{address} leads nowhere"
    assert answer.status_code == 200, answer.redirect_chain
    return resolve(answer.request["PATH_INFO"]).url_name or ""


def methods_of(paths: dict[str, URLPattern]) -> dict[str, set[str]]:
    known = ("get", "post", "put", "patch", "delete")
    return {
        name: {method for method in known if hasattr(pattern.callback.cls, method)}  # type: ignore[attr-defined]
        for name, pattern in paths.items()
    }


def test_the_table_knows_every_page_and_path() -> None:
    assert set(PAGES) == set(MEMBER_PAGES)
    assert {name: set(row) for name, row in REST.items()} == methods_of(API_PATHS)
    assert {name: set(row.lower().split()) for name, row in OPERATOR_REST.items()} == methods_of(OPERATOR_PATHS)


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_for_whom_the_table_names(name: str, world: World) -> None:
    address = address_of(MEMBER_PAGES[name], world.arguments, "portal")
    for method, allowed in zip(("get", "post"), PAGES[name], strict=True):
        if allowed is None:
            if method == "get":
                assert page_led_to(world.browser("owner"), address) in MEMBER_GET
            continue
        for letter, role in LETTERS.items():
            status = send(world.browser(role), method, address)
            if letter in allowed:
                assert status in ({200} if method == "get" else {200, 302, 400}), f"{role} {method}: {status}"
            else:
                assert status == 403, f"{role} {method}: {status}"
        assert send(world.browser("nobody"), method, address) == 302
        assert send(world.browser("outsider"), method, address) == 404
        # The operator is no member either: their pages are their own.
        assert send(world.browser("operator"), method, address) == 404


@pytest.mark.parametrize("name", PAGES)
def test_rows_of_another_organization_are_not_there(name: str, world: World) -> None:
    """Cyd, an owner elsewhere, asks for these rows under their own organization."""
    own = {**world.arguments, "slug": world.elsewhere.slug}
    # Projects are found by their organization; models are everybody's.
    if set(MEMBER_PAGES[name].pattern.converters) - {"project_slug", "model_name"}:
        method = "get" if PAGES[name][0] is not None else "post"
        not_there = 302 if name in TOLD_WHEN_GONE else 404
        assert send(world.browser("outsider"), method, address_of(MEMBER_PAGES[name], own, "portal")) == not_there
        missing = address_of(MEMBER_PAGES[name], unknown(world.arguments), "portal")
        assert send(world.browser("owner"), method, missing) == not_there


@pytest.mark.parametrize("name", OPERATOR_PAGES)
def test_operator_pages_are_there_for_operators_only(name: str, world: World) -> None:
    pattern = OPERATOR_PAGES[name]
    address = reverse(f"portal:{name}", kwargs={field: world.arguments[field] for field in pattern.pattern.converters})
    method = "post" if name in OPERATOR_POST_ONLY else "get"
    assert send(world.browser("nobody"), method, address) == 302
    assert send(world.browser("owner"), method, address) == 404
    assert send(world.browser("operator"), method, address) in ({302, 400} if method == "post" else {200, 302})
    if method == "post" and name != "operator_act_end":
        assert page_led_to(world.browser("operator"), address) in set(OPERATOR_PAGES) - {"operator_home"}


@pytest.mark.parametrize(("name", "method"), REST_CALLS)
def test_path_answers_whom_the_table_names(name: str, method: str, world: World) -> None:
    address = address_of(API_PATHS[name], world.arguments, "api")
    for letter, role in LETTERS.items():
        for client in (world.browser(role), world.program(role)):
            status = send(client, method, address)
            if letter in REST[name][method]:
                assert status in {200, 201, 202, 204, 400, 409}, f"{role}: {status}"
            else:
                assert status == 403, f"{role}: {status}"
    assert send(world.browser("nobody"), method, address) == 401
    assert send(world.browser("outsider"), method, address) == 404
    assert send(world.browser("operator"), method, address) == 404
    elsewhere = address_of(API_PATHS[name], {**world.arguments, "slug": world.elsewhere.slug}, "api")
    assert send(world.program("owner"), method, elsewhere) == 404
    if set(API_PATHS[name].pattern.converters) - {"slug", "project_slug"}:
        assert send(world.browser("outsider"), method, elsewhere) == 404


@pytest.mark.parametrize(("name", "method"), OPERATOR_CALLS)
def test_operator_path_is_there_for_operators_only(name: str, method: str, world: World) -> None:
    fields = OPERATOR_PATHS[name].pattern.converters
    address = reverse(f"api:{name}", kwargs={field: world.arguments[field] for field in fields})
    method, is_read = method.lower(), method.isupper()
    done = {200, 201, 202, 204, 400, 409}
    assert send(world.browser("operator"), method, address) in done
    assert send(world.program("operator"), method, address) in done
    assert send(world.program("reader"), method, address) in (done if is_read else {403})
    for who in (*LETTERS.values(), "outsider"):
        assert send(world.browser(who), method, address) == 404
    for who in (*(role.value for role in Role), "operator as a member"):
        assert send(world.program(who), method, address) == 404
    assert send(world.browser("nobody"), method, address) == 401
    if fields:
        nobodys = {**unknown(world.arguments), "slug": "nowhere"}
        missing = reverse(f"api:{name}", kwargs={field: nobodys[field] for field in fields})
        assert send(world.program("operator"), method, missing) == 404


@pytest.mark.parametrize(("name", "method"), REST_CALLS)
def test_operator_key_opens_no_path_of_a_member(name: str, method: str, world: World) -> None:
    """Nor that of an organization in which its maker is a member."""
    for arguments in (world.arguments, {**world.arguments, "slug": world.elsewhere.slug}):
        assert send(world.program("operator"), method, address_of(API_PATHS[name], arguments, "api")) == 404


def test_operator_key_makes_no_organization_and_opens_no_page(world: World) -> None:
    client = world.program("operator")
    assert send(client, "post", "/api/organizations") == 403
    assert client.get("/api/organizations").json()["data"] == []
    assert client.get("/api/me").json()["operator_key"].startswith("operator (sk-tf-operator-")
    assert send(client, "get", reverse("portal:operator_home")) == 302


@pytest.mark.parametrize("role", Role)
def test_management_key_opens_no_page(role: Role, world: World) -> None:
    assert send(world.program(role.value), "get", reverse("portal:dashboard", args=[world.organization.slug])) == 302


def test_management_key_makes_no_organization_and_sees_its_own_only(world: World) -> None:
    client = world.program("owner")
    assert send(client, "post", "/api/organizations") == 403
    assert [each["slug"] for each in client.get("/api/organizations").json()["data"]] == [world.organization.slug]
    me = client.get("/api/me").json()
    assert me["management_key"].startswith("owner (sk-tf-admin-")


def test_unknown_organization_is_not_there(world: World) -> None:
    assert send(world.browser("owner"), "get", reverse("portal:dashboard", args=["nowhere"])) == 404


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_pages_need_no_account(name: str) -> None:
    assert Client().get(reverse(f"portal:{name}")).status_code == 200


def test_design_page_exists_in_development_only(settings: Any) -> None:
    page = Client().get("/design")
    assert page.status_code == 200
    assert len(page.context["icons"]) > 50
    assert {"page", "accent", "series-1"} <= set(page.context["tokens"]["colours"])
    settings.PUBLIC_URL = "https://tokens.example.com"
    assert Client().get("/design").status_code == 404
    settings.DEBUG = True
    assert Client().get("/design").status_code == 200

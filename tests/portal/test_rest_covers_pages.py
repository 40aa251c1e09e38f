"""What a member can do on a page, a program can do through the management API; where not, the table says why."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.urls import URLPattern

from portal import urls
from tests.portal.test_access import (
    MEMBER_PAGES,
    OPERATOR_PAGES,
    OPERATOR_POST_ONLY,
    OPERATOR_REST,
    PAGES,
    REST,
)


@dataclass(frozen=True)
class Because:
    """Why an act of a page has no operation."""

    reason: str


OF_A_BROWSER = Because("A conversation of the playground page; a program calls the model and keeps its own texts.")
# Page -> (what its GET shows, what its POST does); operations are "method name" as in the table of REST paths.
COVERED: dict[str, tuple[list[str] | Because | None, list[str] | Because | None]] = {
    "dashboard": (["get usage_summary", "get credit", "get keys"], None),
    "quickstart": (Because("Snippets for people to copy; /v1/openapi.json says the same to programs."), None),
    "playground": (Because("The page calls models; a program does so with an API key."), None),
    "playground_share_new": (None, OF_A_BROWSER),
    "playground_shared": (OF_A_BROWSER, None),
    "playground_share_end": (None, OF_A_BROWSER),
    "catalog": (["get prices"], None),
    "model": (["get prices", "get usage_summary"], None),
    "api_keys": (["get keys"], None),
    "api_key_new": (None, ["post keys"]),
    "api_key": (["get key", "get retired_secrets"], ["patch key"]),
    "api_key_rotate": (None, ["post key_rotate"]),
    "retired_secret_end": (None, ["delete retired_secret"]),
    "api_key_revoke": (None, ["delete key"]),
    "management_keys": (
        ["get management_keys"],
        Because("A key that could make keys could not be taken back (docs/adr/0102): people make them."),
    ),
    "management_key_revoke": (None, ["delete management_key"]),
    "usage": (["get usage_summary"], None),
    "usage_chart": (["get usage_summary"], None),
    "requests": (["get usage"], None),
    "request": (["get usage_record"], None),
    "billing": (["get credit", "get invoices", "get ledger"], None),
    "ledger": (["get ledger"], None),
    "billing_details": (["get billing_details"], ["patch billing_details"]),
    "invoice": (["get invoice", "get credit_notes"], None),
    "invoice_pdf": (["get invoice_pdf"], None),
    "invoice_annex": (["get invoice_usage"], None),
    "credit_note_pdf": (["get credit_note_pdf"], None),
    "credit": (["get credit", "get top_ups", "get auto_recharge"], None),
    "top_up_new": (None, ["post top_ups"]),
    "top_up": (["get top_up"], None),
    "promo_redeem": (None, ["post promo_codes"]),
    "auto_recharge": (None, ["put auto_recharge"]),
    # A link that ends soon is made by asking for it.
    "payment_page": (["post payment_page"], None),
    "exports": (["get exports", "get export"], ["post exports"]),
    "export_download": (["get export_file"], None),
    "limits": (["get limits"], ["post limits"]),
    "limit_gauges": (["get limits"], None),
    "limit_try": (None, ["post limit_trial"]),
    "limit_remove": (None, ["delete limit"]),
    "members": (["get members", "get invitations"], ["post invitations"]),
    "member_role": (None, ["patch member"]),
    "member_remove": (None, ["delete member"]),
    "invitation_withdraw": (None, ["delete invitation"]),
    "audit": (["get audit"], None),
    "audit_export": (["get audit_file"], None),
    "alerts": (["get alerts", "get alert_rules"], None),
    "alert_rule_new": (None, ["post alert_rules"]),
    "alert_rule_remove": (None, ["delete alert_rule"]),
    "webhooks": (["get webhooks"], ["post webhooks"]),
    "webhook_change": (None, ["patch webhook"]),
    "webhook_rotate": (None, ["post webhook_secret"]),
    "webhook_test": (None, ["post webhook_test"]),
    "webhook_remove": (None, ["delete webhook"]),
    "deliveries": (["get deliveries"], None),
    "delivery": (["get delivery"], None),
    "delivery_resend": (None, ["post delivery_resend"]),
    "settings": (["get organization", "get projects"], ["patch organization"]),
    "origins": (None, ["patch organization"]),
    "responses_kept": (None, ["patch organization"]),
    "two_factor": (None, ["patch organization"]),
    "transfer": (None, ["post organization_transfer"]),
    "organization_delete": (None, ["delete organization"]),
    "organization_restore": (None, ["post organization_restore"]),
    "project_new": (None, ["post projects"]),
    "project_rename": (None, ["patch project"]),
    "project_archive": (None, ["post project_archive"]),
    "project_restore": (None, ["post project_restore"]),
}
# Pages outside an organization and outside the operator's.
ELSEWHERE: dict[str, str | Because] = {
    "front": Because("For visitors."),
    "home": Because("Sends a person to their organization."),
    "models": "GET /api/models",
    "public_model": "GET /api/models",
    "organization_new": "POST /api/organizations",
    "invitation": Because("The link in a mail proves who opens it: a person joins, not a program in their name."),
    "profile": Because("A person's own account; GET /api/me shows it, a management key does not change its maker."),
    "sessions": Because("Browsers of a person, who ends them from a browser."),
    "session_end": Because("Browsers of a person, who ends them from a browser."),
    "sessions_end": Because("Browsers of a person, who ends them from a browser."),
    "mailbox": Because("Of a development machine."),
    "mail": Because("Of a development machine."),
    "design": Because("Of a development machine."),
    "script_texts": Because("Words for the pages' scripts."),
}
IN_PERSON = Because(
    "An operator enters an organization's pages in person, under a banner (docs/adr/0093); a program that needs its "
    "paths gets a management key of that organization."
)
# The operator's pages, as above; names of paths without "operator_".
OPERATOR: dict[str, tuple[list[str] | Because | None, list[str] | Because | None]] = {
    "operator_home": (["get overview", "get organizations", "get deployments"], None),
    "operations": (["get operations"], None),
    "operations_data": (["get operations"], None),
    "operations_organizations": (["get organizations"], None),
    "capacity": (["get capacity"], None),
    "operator_audit": (["get audit"], None),
    "operator_audit_export": (["get audit_file"], None),
    "operator_keys": (
        ["get keys"],
        Because("A key that could make keys could not be taken back (docs/adr/0143): people make them."),
    ),
    "operator_key_revoke": (None, ["delete key"]),
    "operator_organizations": (["get organizations"], None),
    "operator_organization": (["get organization", "get organization_limit_template"], None),
    "operator_act": (None, IN_PERSON),
    "operator_act_end": (None, IN_PERSON),
    "operator_credit": (None, ["post credit"]),
    "operator_terms": (None, ["put terms"]),
    "operator_suspension": (None, ["put suspension"]),
    "operator_models": (["get models"], None),
    "operator_model_new": (Because("An empty form."), ["post models"]),
    "operator_model": (["get model", "get prices"], ["patch model"]),
    "operator_price": (None, ["post prices", "post price_preview"]),
    "operator_discount": (None, ["post discounts"]),
    "operator_deployment_new": (Because("An empty form."), ["post model_deployments"]),
    "operator_deployment": (["get deployment"], ["patch deployment"]),
    "operator_volume": (["get volume_tiers", "get discounts", "get agreed_prices"], None),
    "operator_tiers": (None, ["put volume_tiers", "post volume_tiers_preview"]),
    "operator_any_discount": (None, ["post discounts", "post discount_preview"]),
    "operator_discount_end": (None, ["post discount_end"]),
    "operator_limit_templates": (["get limit_templates"], None),
    "operator_limit_template_new": (Because("An empty form."), ["post limit_templates"]),
    "operator_limit_template": (["get limit_template", "get limit_template_uses", "get limit_template_runs"], None),
    "operator_limit_template_change": (["get limit_template"], ["put limit_template"]),
    "operator_limit_template_default": (None, ["put limit_template_default"]),
    "operator_limit_template_retire": (None, ["put limit_template_retirement"]),
    "operator_limit_template_apply": (
        ["post limit_template_preview"],
        ["put organization_limit_template", "post limit_template_runs", "get limit_template_run"],
    ),
    "operator_limit_template_trial": (["post limit_template_preview"], None),
    "operator_limit_template_withdraw": (None, ["delete organization_limit_template"]),
    "operator_engines": (["get deployments"], None),
    "operator_invoices": (["get invoices", "get month", "get invoice_runs"], None),
    "operator_invoice_run": (None, ["post invoice_runs", "get invoice_run"]),
    "operator_run": (["get invoice_run", "get invoice_run_outcomes"], None),
    "operator_invoice_retry": (None, ["post invoice_run_retry"]),
    "operator_invoice": (["get invoice"], None),
    "operator_invoice_pdf": (["get invoice_pdf"], None),
    "operator_invoice_annex": (["get invoice_usage"], None),
    "operator_invoice_credit": (None, ["post invoice_credit_notes"]),
    "operator_invoice_payment": (None, ["post invoice_payment"]),
    "operator_invoice_void": (None, ["post invoice_void"]),
    "operator_invoice_write_off": (None, ["post invoice_write_off"]),
    "operator_credit_note_pdf": (["get credit_note_pdf"], None),
    "operator_money": (["get money"], None),
    "operator_refund": (None, ["post refund"]),
    "operator_fee_new": (None, ["post fees"]),
    "operator_fee_end": (None, ["post fee_end"]),
    "operator_exemption": (None, ["put exemption"]),
    "operator_promo_codes": (["get promo_codes"], ["post promo_codes"]),
    "operator_promo_code_switch": (None, ["patch promo_code"]),
    "operator_tax_rates": (["get tax_rates"], ["post tax_rates"]),
    "operator_events": (["get payment_events"], None),
    "operator_event_replay": (None, ["post payment_event_replay"]),
    "operator_retention": (["get retention"], None),
    "operator_reconciliation": (["get reconciliation"], None),
    "operator_call": (["get compared_call"], None),
    "operator_reconciliation_csv": (["get reconciliation_file"], None),
    "operator_period_close": (None, ["post period_closes"]),
}


def test_every_page_says_which_operations_do_the_same() -> None:
    assert set(COVERED) == set(MEMBER_PAGES)
    outside = {each.name for each in urls.urlpatterns if isinstance(each, URLPattern)}
    assert set(ELSEWHERE) == outside


@pytest.mark.parametrize("name", COVERED)
def test_a_page_has_its_operations(name: str) -> None:
    for shown, allowed, covered in zip(("GET", "POST"), PAGES[name], COVERED[name], strict=True):
        assert (allowed is None) == (covered is None), f"{shown} of {name}"
        if not isinstance(covered, list):
            continue
        for operation in covered:
            method, _, path = operation.partition(" ")
            assert method in REST[path], operation
            # An act is open to the same people on both ways; a composed page may show less than its parts.
            if shown == "POST":
                assert REST[path][method] == allowed, operation
            else:
                assert set(REST[path][method]) >= set(allowed or "") - set("bdv") or path == "invitations", operation


def test_every_operation_is_that_of_some_page() -> None:
    """The API does nothing that people cannot see or do on a page."""
    known = {f"{method} {path}" for path, methods in REST.items() for method in methods}
    assert known == used(COVERED)


def used(covered: dict[str, tuple[list[str] | Because | None, list[str] | Because | None]]) -> set[str]:
    return {operation for pair in covered.values() for part in pair if isinstance(part, list) for operation in part}


def test_what_an_operator_does_on_a_page_a_program_can_do() -> None:
    assert set(OPERATOR) == set(OPERATOR_PAGES)
    known = {
        f"{method} {name.removeprefix('operator_')}"
        for name, methods in OPERATOR_REST.items()
        for method in methods.lower().split()
    }
    assert known == used(OPERATOR)
    for name, (shown, done) in OPERATOR.items():
        assert (shown is None) == (name in OPERATOR_POST_ONLY), name
        assert shown is not None or done is not None, name

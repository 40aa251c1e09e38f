"""Every page of the portal and who looks at it: the list that the browser tests visit and the screenshots show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PortalPage:
    """`who` is signed in; `{slug}` and the like are filled in from the seeded rows (tests/browser/seed.py)."""

    name: str
    path: str
    who: str = ""
    status: int = 200


PAGES = [
    PortalPage("front", "/"),
    PortalPage("sign-up", "/accounts/signup/"),
    PortalPage("check-your-mail", "/accounts/confirm-email/"),
    PortalPage("sign-in", "/accounts/login/"),
    PortalPage("password-reset", "/accounts/password/reset/"),
    PortalPage("mailbox", "/dev/mailbox"),
    PortalPage("design", "/design"),
    PortalPage("public-models", "/models"),
    PortalPage("public-model", "/models/smollm2-135m-instruct"),
    PortalPage("not-found", "/nowhere", status=404),
    PortalPage("api-docs", "/api/docs"),
    PortalPage("api-docs-inference", "/api/docs/inference"),
    PortalPage("onboarding", "/o/{new_slug}/", "cyd"),
    PortalPage("no-requests", "/o/{new_slug}/usage/requests", "cyd"),
    PortalPage("no-keys", "/o/{new_slug}/keys", "cyd"),
    PortalPage("no-alerts", "/o/{new_slug}/alerts", "cyd"),
    PortalPage("no-webhooks", "/o/{new_slug}/alerts/webhooks", "cyd"),
    PortalPage("no-exports", "/o/{new_slug}/exports", "cyd"),
    PortalPage("organization-new", "/organizations/new", "cyd"),
    PortalPage("home", "/o/{slug}/", "ada"),
    PortalPage("api-keys", "/o/{slug}/keys", "ada"),
    PortalPage("api-key-new", "/o/{slug}/keys?new=1", "ada"),
    PortalPage("api-key", "/o/{slug}/keys/{key_id}", "ada"),
    PortalPage("quick-start", "/o/{slug}/quickstart", "ada"),
    PortalPage("playground", "/o/{slug}/playground", "ada"),
    PortalPage("models", "/o/{slug}/models", "ada"),
    PortalPage("model", "/o/{slug}/models/smollm2-135m-instruct", "ada"),
    PortalPage("usage", "/o/{slug}/usage?days=30", "ada"),
    PortalPage("requests", "/o/{slug}/usage/requests", "ada"),
    PortalPage("request", "/o/{slug}/usage/requests/{request_id}", "ada"),
    PortalPage("billing", "/o/{slug}/billing", "ada"),
    PortalPage("ledger", "/o/{slug}/billing/ledger", "ada"),
    PortalPage("invoice", "/o/{slug}/billing/invoices/{invoice_id}", "ada"),
    PortalPage("billing-details", "/o/{slug}/billing/details", "ada"),
    PortalPage("credit", "/o/{slug}/billing/credit", "ada"),
    PortalPage("exports", "/o/{slug}/exports", "ada"),
    PortalPage("limits", "/o/{slug}/limits", "ada"),
    PortalPage("management-keys", "/o/{slug}/management-keys", "ada"),
    PortalPage("alerts", "/o/{slug}/alerts", "ada"),
    PortalPage("webhooks", "/o/{slug}/alerts/webhooks", "ada"),
    PortalPage("deliveries", "/o/{slug}/alerts/deliveries", "ada"),
    PortalPage("delivery", "/o/{slug}/alerts/deliveries/{delivery_id}", "ada"),
    PortalPage("members", "/o/{slug}/members", "ada"),
    PortalPage("audit", "/o/{slug}/audit", "ada"),
    PortalPage("settings", "/o/{slug}/settings", "ada"),
    PortalPage("account", "/account", "ada"),
    PortalPage("sessions", "/account/sessions", "ada"),
    PortalPage("e-mail-addresses", "/accounts/email/", "ada"),
    PortalPage("password-change", "/accounts/password/change/", "ada"),
    PortalPage("two-factor", "/accounts/2fa/", "ada"),
    PortalPage("operator", "/operator/", "oda"),
    PortalPage("operator-operations", "/operator/operations?range=24h", "oda"),
    PortalPage("operator-capacity", "/operator/capacity?tokens_per_s=387.6&compare_with=253.9", "oda"),
    PortalPage("operator-organizations", "/operator/organizations", "oda"),
    PortalPage("operator-organization", "/operator/organizations/{slug}", "oda"),
    PortalPage("operator-models", "/operator/models", "oda"),
    PortalPage("operator-model", "/operator/models/{model_id}", "oda"),
    PortalPage("operator-engines", "/operator/engines", "oda"),
    PortalPage("operator-invoices", "/operator/invoices?period={period}", "oda"),
    PortalPage("operator-run", "/operator/invoices/runs/{run_id}", "oda"),
    PortalPage("operator-reconciliation", "/operator/reconciliation", "oda"),
    PortalPage("operator-call", "/operator/reconciliation/calls/{call_id}", "oda"),
    PortalPage("operator-limit-templates", "/operator/limit-templates", "oda"),
    PortalPage("operator-limit-template", "/operator/limit-templates/{template_id}", "oda"),
    PortalPage("operator-limit-template-change", "/operator/limit-templates/{template_id}/change", "oda"),
    PortalPage(
        "operator-limit-template-apply", "/operator/limit-templates/{template_id}/apply?uses={template_id}", "oda"
    ),
    PortalPage("operator-money", "/operator/organizations/{slug}/money", "oda"),
    PortalPage("operator-invoice", "/operator/invoices/{invoice_id}", "oda"),
    PortalPage("operator-promo-codes", "/operator/promo-codes", "oda"),
    PortalPage("operator-tax-rates", "/operator/tax-rates", "oda"),
    PortalPage("operator-volume", "/operator/volume-prices", "oda"),
    PortalPage("operator-keys", "/operator/keys", "oda"),
    PortalPage("operator-audit", "/operator/audit", "oda"),
    PortalPage("operator-retention", "/operator/retention", "oda"),
    PortalPage("operator-payment-events", "/operator/payment-events", "oda"),
]

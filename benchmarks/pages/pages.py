"""The pages that are measured, and why the rest is not. Nothing here needs a database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """`path` has names in braces (`measure.names` fills them), and after a # the reader's time zone."""

    name: str
    path: str
    is_operator: bool = False


MEMBER = [
    Page("home", "/o/{slug}/"),
    Page("quickstart", "/o/{slug}/quickstart"),
    Page("playground", "/o/{slug}/playground"),
    Page("API keys", "/o/{slug}/keys"),
    Page("API keys, search", "/o/{slug}/keys?q=key+1234"),
    Page("an API key", "/o/{slug}/keys/{key}"),
    Page("management keys", "/o/{slug}/management-keys"),
    Page("usage, 24 hours", "/o/{slug}/usage?days=1"),
    Page("usage, 30 days by model", "/o/{slug}/usage?days=30"),
    Page("usage, 30 days by project", "/o/{slug}/usage?days=30&group=project"),
    Page("usage, 30 days by API key", "/o/{slug}/usage?days=30&group=api_key"),
    Page("usage, 90 days by API key", "/o/{slug}/usage?days=90&group=api_key"),
    Page("usage, 90 days by end user", "/o/{slug}/usage?days=90&group=end_user"),
    Page("chart, 24 hours", "/o/{slug}/usage/chart.json?days=1"),
    Page("chart, 90 days", "/o/{slug}/usage/chart.json?days=90"),
    Page("chart, 90 days in Kathmandu", "/o/{slug}/usage/chart.json?days=90#Asia/Kathmandu"),
    Page("chart, a year by month", "/o/{slug}/usage/chart.json?days=365"),
    *(
        Page(f"chart, {days} days{of}", f"/o/{{slug}}/usage/chart.json?days={days}&{query}")
        for days, of, query in (
            (90, " by model", "split=model"),
            (30, " by project", "split=project"),
            (90, " by project", "split=project"),
            (30, " by API key", "split=api_key"),
            (90, " by API key", "split=api_key"),
            (90, " by end user", "split=end_user"),
            (90, " of errors", "metric=errors"),
            (90, " of errors by API key", "metric=errors&split=api_key"),
            (90, " of one key", "api_key={key}"),
            (90, ", first token", "metric=ttft"),
            (30, ", first token by project", "metric=ttft&split=project"),
            (90, ", first token by API key", "metric=ttft&split=api_key"),
            (90, ", first token by end user", "metric=ttft&split=end_user"),
            (90, ", first token of one key", "metric=ttft&api_key={key}"),
        )
    ),
    # Where no day is a day of UTC, and where hours begin in the middle of hours.
    *(
        Page(f"chart, 90 days{of} in {zone.partition('/')[2]}", f"/o/{{slug}}/usage/chart.json?days=90{query}#{zone}")
        for of, query, zone in (
            ("", "", "Europe/Berlin"),
            (" by model", "&split=model", "Europe/Berlin"),
            (" by project", "&split=project", "Europe/Berlin"),
            (" by API key", "&split=api_key", "Europe/Berlin"),
            (" by end user", "&split=end_user", "Europe/Berlin"),
            (" of errors", "&metric=errors", "Europe/Berlin"),
            (" of errors by API key", "&metric=errors&split=api_key", "Europe/Berlin"),
            (" of one key", "&api_key={key}", "Europe/Berlin"),
            (", first token", "&metric=ttft", "Europe/Berlin"),
            (", first token by API key", "&metric=ttft&split=api_key", "Europe/Berlin"),
            (", first token", "&metric=ttft", "Asia/Tokyo"),
            (" by end user", "&split=end_user", "Asia/Kathmandu"),
        )
    ),
    *(
        Page(
            f"usage, {days} days by {group.replace('_', ' ')} in Berlin",
            f"/o/{{slug}}/usage?days={days}&group={group}#Europe/Berlin",
        )
        for days, group in ((30, "model"), (90, "project"), (90, "api_key"), (90, "end_user"))
    ),
    Page("usage of one project, 90 days", "/o/{slug}/usage?days=90&project={project}"),
    Page("usage of one end user, 90 days", "/o/{slug}/usage?days=90&end_user={end_user}"),
    Page("usage of one model by API key, 90 days", "/o/{slug}/usage?days=90&group=api_key&model={model_name}"),
    Page("usage of one key, 90 days", "/o/{slug}/usage?days=90&api_key={key}"),
    Page("requests", "/o/{slug}/usage/requests"),
    Page("requests, a later page", "/o/{slug}/usage/requests?after={after}"),
    Page("requests of one key", "/o/{slug}/usage/requests?api_key={key}"),
    Page("requests that failed", "/o/{slug}/usage/requests?status=failed"),
    Page("request", "/o/{slug}/usage/requests/{request}"),
    Page("billing", "/o/{slug}/billing"),
    Page("an invoice", "/o/{slug}/billing/invoices/{invoice}"),
    Page("ledger", "/o/{slug}/billing/ledger"),
    Page("billing details", "/o/{slug}/billing/details"),
    Page("credit", "/o/{slug}/billing/credit"),
    Page("exports", "/o/{slug}/exports"),
    Page("limits", "/o/{slug}/limits"),
    Page("limits, gauges", "/o/{slug}/limits/gauges"),
    Page("members", "/o/{slug}/members"),
    Page("audit log", "/o/{slug}/audit"),
    Page("alerts", "/o/{slug}/alerts"),
    Page("webhooks", "/o/{slug}/alerts/webhooks"),
    Page("deliveries", "/o/{slug}/alerts/deliveries"),
    Page("deliveries that failed", "/o/{slug}/alerts/deliveries?state=failed"),
    Page("delivery", "/o/{slug}/alerts/deliveries/{delivery}"),
    Page("settings", "/o/{slug}/settings"),
    Page("catalog", "/o/{slug}/models"),
    Page("a model", "/o/{slug}/models/{model_name}"),
]
OPERATOR = [
    Page(name, path, is_operator=True)
    for name, path in (
        ("operator overview", "/operator/"),
        ("organizations", "/operator/organizations"),
        ("organizations, search", "/operator/organizations?q=00777"),
        ("organizations, last page", "/operator/organizations?page=200"),
        ("organizations, by spend", "/operator/organizations?order=spent"),
        ("organizations, by spend, last page", "/operator/organizations?order=spent&page=200"),
        ("organizations, active by name", "/operator/organizations?state=active&order=name"),
        ("an organization", "/operator/organizations/{slug}"),
        ("an organization's money", "/operator/organizations/{slug}/money"),
        ("operations", "/operator/operations"),
        ("operations, organizations to choose", "/operator/operations/organizations?organization=seed-0"),
        ("operations data, 15 min", "/operator/operations/data.json?range=15m"),
        ("operations data, 24 h", "/operator/operations/data.json?range=24h"),
        ("operations data, 30 d", "/operator/operations/data.json?range=30d"),
        ("operations data, 30 d by deployment", "/operator/operations/data.json?range=30d&group=deployment"),
        ("operations data, 15 min by organization", "/operator/operations/data.json?range=15m&group=organization"),
        ("operations data, 24 h by organization", "/operator/operations/data.json?range=24h&group=organization"),
        ("operations data, 30 d by organization", "/operator/operations/data.json?range=30d&group=organization"),
        ("operations data, 30 d of the largest", "/operator/operations/data.json?range=30d&organization={slug}"),
        ("capacity", "/operator/capacity"),
        ("operator's audit log", "/operator/audit"),
        ("operator keys", "/operator/keys"),
        ("models and prices", "/operator/models"),
        ("a model and its prices", "/operator/models/{model}"),
        ("volume prices", "/operator/volume-prices"),
        ("limit templates", "/operator/limit-templates"),
        ("a limit template that all have", "/operator/limit-templates/{template}"),
        ("a limit template, last page", "/operator/limit-templates/{template}?page=200"),
        ("what a limit template would change", "/operator/limit-templates/{template}/apply?q=007"),
        ("a limit template on the week of the largest", "/operator/limit-templates/{template}/trial/{slug}"),
        ("engines", "/operator/engines"),
        ("invoice run", "/operator/invoices"),
        ("invoice run of a month that is over", "/operator/invoices?period={period}"),
        ("what a run did with each", "/operator/invoices/runs/{run}"),
        ("what a run did, search", "/operator/invoices/runs/{run}?outcome=finalized&q=00777"),
        ("operator's invoice", "/operator/invoices/{invoice}"),
        ("promo codes", "/operator/promo-codes"),
        ("tax rates", "/operator/tax-rates"),
        ("payment events", "/operator/payment-events"),
        ("retention", "/operator/retention"),
        ("reconciliation", "/operator/reconciliation"),
        ("two accounts of a call", "/operator/reconciliation/calls/{request}"),
    )
]
_OF_ORGANIZATION = (
    *("members", "invitations", "projects", "keys", "management-keys", "limits", "audit", "usage"),
    *(f"usage/summary?start={{since}}&end={{until}}&group_by={group}" for group in ("total", "api_key", "day")),
    *("prices", "credit", "ledger", "invoices"),
    *("invoices/{invoice}", "credit-notes", "top-ups", "exports", "alert-rules", "alerts", "webhooks", "deliveries"),
)
_OF_OPERATOR = (
    *("overview", "organizations", "organizations/{slug}", "organizations/{slug}/money"),
    *("models", "models/{model}", "models/{model}/prices", "deployments", "discounts", "agreed-prices"),
    *("volume-tiers", "invoices", "invoices/month?period={period}", "invoices/{invoice}", "invoice-runs"),
    *("invoice-runs/{run}/outcomes",),
    *("promo-codes", "tax-rates", "payment-events", "operations?range=30d", "capacity", "reconciliation"),
    *("reconciliation/calls/{request}", "limit-templates", "limit-templates/{template}/organizations"),
    *("organizations/{slug}/limit-template",),
    *("retention", "audit", "keys"),
)
REST = [
    Page("GET /api/models", "/api/models"),
    Page("GET /api/organizations", "/api/organizations"),
    *(
        Page(f"GET …/{path.replace('start={since}&end={until}&', '')}", f"/api/organizations/{{slug}}/{path}")
        for path in _OF_ORGANIZATION
    ),
    *(Page(f"GET /api/operator/{path}", f"/api/operator/{path}", is_operator=True) for path in _OF_OPERATOR),
]
PAGES = [*MEMBER, *OPERATOR, *REST]

# Answers to GET that are no list and no chart of the database, by name of the address.
NOT_MEASURED: dict[str, tuple[str, ...]] = {
    "A file, streamed or made once: it is as long as what was asked for.": (
        *("portal:invoice_pdf", "portal:invoice_annex", "portal:credit_note_pdf", "portal:export_download"),
        *("portal:audit_export", "portal:operator_audit_export", "portal:operator_reconciliation_csv"),
        *("portal:operator_invoice_pdf", "portal:operator_invoice_annex", "portal:operator_credit_note_pdf"),
        *("api:audit_file", "api:invoice_pdf", "api:invoice_usage", "api:credit_note_pdf", "api:export_file"),
        *("api:operator_invoice_pdf", "api:operator_invoice_usage", "api:operator_credit_note_pdf"),
        *("api:operator_reconciliation_file", "api:operator_audit_file"),
    ),
    "A page of the payment provider.": ("portal:payment_page",),
    "One row, found by its primary key, or the form for a new one.": (
        *("portal:playground_shared", "portal:top_up", "portal:operator_deployment"),
        *("portal:operator_model_new", "portal:operator_deployment_new", "portal:operator_limit_template_new"),
        *("portal:operator_limit_template_change", "api:operator_limit_template", "api:operator_limit_template_run"),
        "api:operator_limit_template_runs",
        *("api:organization", "api:key", "api:retired_secrets", "api:usage_record", "api:top_up", "api:auto_recharge"),
        *("api:export", "api:billing_details", "api:delivery", "api:operator_deployment", "api:operator_invoice_run"),
    ),
}

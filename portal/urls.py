"""The portal's pages. Those of an organization are under /o/<slug>/, the operator's under /operator/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from portal.api_keys import views as api_keys
from portal.audit import views as audit
from portal.billing_pages import usage_views as usage
from portal.billing_pages import views as billing
from portal.catalog import views as catalog
from portal.home import views as home
from portal.mailbox import views as mailbox
from portal.operations import views as operations
from portal.operator import catalog_views as operator_catalog
from portal.operator import money_views as operator_money
from portal.operator import views as operator
from portal.organizations import views as organizations
from portal.playground import views as playground
from portal.quotas import views as quotas
from portal.users import views as users

app_name = "portal"

organization_pages: list[URLPattern | URLResolver] = [
    path("", home.dashboard, name="dashboard"),
    path("quickstart", home.quickstart, name="quickstart"),
    path("playground", playground.playground, name="playground"),
    path("models", catalog.catalog, name="catalog"),
    path("keys", api_keys.api_keys, name="api_keys"),
    path("keys/new", api_keys.create, name="api_key_new"),
    path("keys/<int:api_key_id>/revoke", api_keys.revoke, name="api_key_revoke"),
    path("usage", usage.overview, name="usage"),
    path("usage/chart.json", usage.chart, name="usage_chart"),
    path("usage/requests", usage.requests, name="requests"),
    path("usage/requests/<uuid:request_id>", usage.request_detail, name="request"),
    path("billing", billing.billing, name="billing"),
    path("billing/ledger", billing.ledger, name="ledger"),
    path("billing/details", billing.details, name="billing_details"),
    path("billing/invoices/<int:invoice_id>", billing.invoice, name="invoice"),
    path("billing/invoices/<int:invoice_id>.pdf", billing.invoice_pdf, name="invoice_pdf"),
    path("limits", quotas.limits, name="limits"),
    path("limits/<int:quota_id>/remove", quotas.remove, name="limit_remove"),
    path("members", organizations.members, name="members"),
    path("members/<int:member_id>/role", organizations.change_role, name="member_role"),
    path("members/<int:member_id>/remove", organizations.remove_member, name="member_remove"),
    path("invitations/<int:invitation_id>/withdraw", organizations.withdraw_invitation, name="invitation_withdraw"),
    path("audit", audit.audit, name="audit"),
    path("settings", organizations.settings, name="settings"),
    path("projects/new", organizations.create_project, name="project_new"),
]

operator_pages: list[URLPattern | URLResolver] = [
    path("", operator.overview, name="operator_home"),
    path("operations", operations.operations, name="operations"),
    path("operations/data.json", operations.data, name="operations_data"),
    path("operations/organizations", operations.organization_options, name="operations_organizations"),
    path("capacity", operations.capacity, name="capacity"),
    path("organizations", operator.organizations, name="operator_organizations"),
    path("organizations/<slug:slug>", operator.organization, name="operator_organization"),
    path("organizations/<slug:slug>/credit", operator.grant_credit, name="operator_credit"),
    path("organizations/<slug:slug>/terms", operator.change_terms, name="operator_terms"),
    path("organizations/<slug:slug>/suspension", operator.change_suspension, name="operator_suspension"),
    path("models", operator_catalog.models, name="operator_models"),
    path("models/new", operator_catalog.model_new, name="operator_model_new"),
    path("models/<int:model_id>", operator_catalog.model, name="operator_model"),
    path("models/<int:model_id>/price", operator_catalog.price, name="operator_price"),
    path("models/<int:model_id>/deployments/new", operator_catalog.deployment_new, name="operator_deployment_new"),
    path("deployments/<int:deployment_id>", operator_catalog.deployment, name="operator_deployment"),
    path("engines", operator_catalog.engines, name="operator_engines"),
    path("invoices", operator_money.invoices, name="operator_invoices"),
    path("invoices/run", operator_money.run, name="operator_invoice_run"),
    path("invoices/<int:invoice_id>", operator_money.invoice, name="operator_invoice"),
    path("invoices/<int:invoice_id>.pdf", operator_money.invoice_pdf, name="operator_invoice_pdf"),
    path("reconciliation", operator_money.reconciliation, name="operator_reconciliation"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.front, name="front"),
    path("home", home.home, name="home"),
    path("models", catalog.public_catalog, name="models"),
    path("organizations/new", organizations.create, name="organization_new"),
    path("invitations/<str:token>", organizations.invitation, name="invitation"),
    path("account", users.profile, name="profile"),
    path("dev/mailbox", mailbox.mailbox, name="mailbox"),
    path("dev/mailbox/<str:name>", mailbox.mail, name="mail"),
    path("design", home.design, name="design"),
    path("o/<slug:slug>/", include(organization_pages)),
    path("operator/", include(operator_pages)),
]

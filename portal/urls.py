"""The portal's pages. Those of an organization are under /o/<slug>/, the operator's under /operator/.

An address that takes only what a form sends lies below the page that has the form: whoever opens it is led up there.
"""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from portal.alerts import views as alerts
from portal.alerts import webhook_views as webhooks
from portal.api_keys import management_views as management_keys
from portal.api_keys import views as api_keys
from portal.audit import views as audit
from portal.billing_pages import credit_views as credit
from portal.billing_pages import export_views as exports
from portal.billing_pages import usage_charts
from portal.billing_pages import usage_views as usage
from portal.billing_pages import views as billing
from portal.catalog import views as catalog
from portal.home import views as home
from portal.language import ScriptTexts
from portal.limit_templates import views as limit_templates
from portal.mailbox import views as mailbox
from portal.operations import views as operations
from portal.operator import acting_views as acting
from portal.operator import audit_views as operator_audit
from portal.operator import catalog_views as operator_catalog
from portal.operator import finance_views as finance
from portal.operator import key_views as operator_keys
from portal.operator import money_views as operator_money
from portal.operator import reconciliation_views as operator_reconciliation
from portal.operator import retention_views as operator_retention
from portal.operator import views as operator
from portal.operator import volume_views as operator_volume
from portal.organizations import views as organizations
from portal.playground import views as playground
from portal.quotas import views as quotas
from portal.users import views as users

app_name = "portal"

organization_pages: list[URLPattern | URLResolver] = [
    path("", home.dashboard, name="dashboard"),
    path("quickstart", home.quickstart, name="quickstart"),
    path("playground", playground.playground, name="playground"),
    path("playground/shared", playground.share_new, name="playground_share_new"),
    path("playground/shared/<int:share_id>", playground.shared, name="playground_shared"),
    path("playground/shared/<int:share_id>/end", playground.share_end, name="playground_share_end"),
    path("models", catalog.catalog, name="catalog"),
    path("models/<path:model_name>", catalog.model, name="model"),
    path("keys", api_keys.api_keys, name="api_keys"),
    path("keys/new", api_keys.create, name="api_key_new"),
    path("keys/<int:api_key_id>", api_keys.api_key, name="api_key"),
    path("keys/<int:api_key_id>/rotate", api_keys.rotate, name="api_key_rotate"),
    path("keys/<int:api_key_id>/secrets/<int:retired_id>/end", api_keys.end_retired, name="retired_secret_end"),
    path("keys/<int:api_key_id>/revoke", api_keys.revoke, name="api_key_revoke"),
    path("management-keys", management_keys.management_keys, name="management_keys"),
    path("management-keys/<int:key_id>/revoke", management_keys.revoke, name="management_key_revoke"),
    path("usage", usage.overview, name="usage"),
    path("usage/chart.json", usage_charts.chart, name="usage_chart"),
    path("usage/requests", usage.requests, name="requests"),
    path("usage/requests/<uuid:request_id>", usage.request_detail, name="request"),
    path("billing", billing.billing, name="billing"),
    path("billing/ledger", billing.ledger, name="ledger"),
    path("billing/details", billing.details, name="billing_details"),
    path("billing/credit", credit.credit, name="credit"),
    path("billing/credit/new", credit.top_up_new, name="top_up_new"),
    path("billing/credit/redeem", credit.redeem, name="promo_redeem"),
    path("billing/credit/auto", credit.auto_recharge, name="auto_recharge"),
    path("billing/credit/page", credit.payment_page, name="payment_page"),
    path("billing/credit/<int:top_up_id>", credit.top_up, name="top_up"),
    path("billing/credit-notes/<int:credit_note_id>.pdf", billing.credit_note_pdf, name="credit_note_pdf"),
    path("exports", exports.exports, name="exports"),
    path("exports/<int:export_id>", exports.download, name="export_download"),
    path("billing/invoices/<int:invoice_id>", billing.invoice, name="invoice"),
    path("billing/invoices/<int:invoice_id>.pdf", billing.invoice_pdf, name="invoice_pdf"),
    path("billing/invoices/<int:invoice_id>.csv", billing.invoice_annex, name="invoice_annex"),
    path("limits", quotas.limits, name="limits"),
    path("limits/try", quotas.try_out, name="limit_try"),
    path("limits/gauges", quotas.gauges, name="limit_gauges"),
    path("limits/<int:quota_id>/remove", quotas.remove, name="limit_remove"),
    path("members", organizations.members, name="members"),
    path("members/<int:member_id>/role", organizations.change_role, name="member_role"),
    path("members/<int:member_id>/remove", organizations.remove_member, name="member_remove"),
    path(
        "members/invitations/<int:invitation_id>/withdraw",
        organizations.withdraw_invitation,
        name="invitation_withdraw",
    ),
    path("audit", audit.audit, name="audit"),
    path("audit.csv", audit.export, name="audit_export"),
    path("alerts", alerts.alerts, name="alerts"),
    path("alerts/new", alerts.rule_new, name="alert_rule_new"),
    path("alerts/<int:rule_id>/remove", alerts.rule_remove, name="alert_rule_remove"),
    path("alerts/webhooks", webhooks.webhooks, name="webhooks"),
    path("alerts/webhooks/<int:webhook_id>", webhooks.change, name="webhook_change"),
    path("alerts/webhooks/<int:webhook_id>/rotate", webhooks.rotate, name="webhook_rotate"),
    path("alerts/webhooks/<int:webhook_id>/test", webhooks.test, name="webhook_test"),
    path("alerts/webhooks/<int:webhook_id>/remove", webhooks.remove, name="webhook_remove"),
    path("alerts/deliveries", webhooks.deliveries, name="deliveries"),
    path("alerts/deliveries/<int:delivery_id>", webhooks.delivery, name="delivery"),
    path("alerts/deliveries/<int:delivery_id>/resend", webhooks.resend, name="delivery_resend"),
    path("settings", organizations.settings, name="settings"),
    path("settings/origins", organizations.origins, name="origins"),
    path("settings/responses", organizations.responses_kept, name="responses_kept"),
    path("settings/two-factor", organizations.two_factor, name="two_factor"),
    path("settings/transfer", organizations.transfer, name="transfer"),
    path("settings/delete", organizations.delete, name="organization_delete"),
    path("settings/restore", organizations.restore, name="organization_restore"),
    path("settings/projects/new", organizations.create_project, name="project_new"),
    path("settings/projects/<slug:project_slug>/rename", organizations.rename_project, name="project_rename"),
    path("settings/projects/<slug:project_slug>/archive", organizations.archive_project, name="project_archive"),
    path("settings/projects/<slug:project_slug>/restore", organizations.restore_project, name="project_restore"),
]

operator_pages: list[URLPattern | URLResolver] = [
    path("", operator.overview, name="operator_home"),
    path("operations", operations.operations, name="operations"),
    path("operations/data.json", operations.data, name="operations_data"),
    path("operations/organizations", operations.organization_options, name="operations_organizations"),
    path("capacity", operations.capacity, name="capacity"),
    path("audit", operator_audit.audit, name="operator_audit"),
    path("audit.csv", operator_audit.export, name="operator_audit_export"),
    path("keys", operator_keys.keys, name="operator_keys"),
    path("keys/<int:operator_key_id>/revoke", operator_keys.revoke, name="operator_key_revoke"),
    path("organizations", operator.organizations, name="operator_organizations"),
    path("organizations/<slug:slug>", operator.organization, name="operator_organization"),
    path("organizations/<slug:slug>/act", acting.begin, name="operator_act"),
    path("acting/end", acting.end, name="operator_act_end"),
    path("organizations/<slug:slug>/credit", operator.grant_credit, name="operator_credit"),
    path("organizations/<slug:slug>/terms", operator.change_terms, name="operator_terms"),
    path("organizations/<slug:slug>/suspension", operator.change_suspension, name="operator_suspension"),
    path("models", operator_catalog.models, name="operator_models"),
    path("models/new", operator_catalog.model_new, name="operator_model_new"),
    path("models/<int:model_id>", operator_catalog.model, name="operator_model"),
    path("models/<int:model_id>/price", operator_catalog.price, name="operator_price"),
    path("models/<int:model_id>/discount", operator_catalog.discount, name="operator_discount"),
    path("models/<int:model_id>/deployments/new", operator_catalog.deployment_new, name="operator_deployment_new"),
    path("deployments/<int:deployment_id>", operator_catalog.deployment, name="operator_deployment"),
    path("volume-prices", operator_volume.page, name="operator_volume"),
    path("volume-prices/tiers", operator_volume.tiers, name="operator_tiers"),
    path("volume-prices/discount", operator_volume.discount, name="operator_any_discount"),
    path("volume-prices/discounts/<int:discount_id>/end", operator_volume.discount_end, name="operator_discount_end"),
    path("limit-templates", limit_templates.templates, name="operator_limit_templates"),
    path("limit-templates/new", limit_templates.new, name="operator_limit_template_new"),
    path("limit-templates/<int:template_id>", limit_templates.template, name="operator_limit_template"),
    path("limit-templates/<int:template_id>/change", limit_templates.change, name="operator_limit_template_change"),
    path("limit-templates/<int:template_id>/default", limit_templates.default, name="operator_limit_template_default"),
    path("limit-templates/<int:template_id>/retire", limit_templates.retire, name="operator_limit_template_retire"),
    path("limit-templates/<int:template_id>/apply", limit_templates.apply, name="operator_limit_template_apply"),
    path(
        "limit-templates/<int:template_id>/trial/<slug:slug>",
        limit_templates.trial,
        name="operator_limit_template_trial",
    ),
    path(
        "organizations/<slug:slug>/limit-template/withdraw",
        limit_templates.withdraw,
        name="operator_limit_template_withdraw",
    ),
    path("engines", operator_catalog.engines, name="operator_engines"),
    path("invoices", operator_money.invoices, name="operator_invoices"),
    path("invoices/run", operator_money.run, name="operator_invoice_run"),
    path("invoices/runs/<int:run_id>", operator_money.run_detail, name="operator_run"),
    path("invoices/runs/<int:run_id>/retry/<slug:slug>", operator_money.retry, name="operator_invoice_retry"),
    path("invoices/<int:invoice_id>", operator_money.invoice, name="operator_invoice"),
    path("invoices/<int:invoice_id>.pdf", operator_money.invoice_pdf, name="operator_invoice_pdf"),
    path("invoices/<int:invoice_id>.csv", finance.invoice_annex, name="operator_invoice_annex"),
    path(
        "invoices/<int:invoice_id>/credit",
        finance.invoice_act,
        {"act": "credit"},
        name="operator_invoice_credit",
    ),
    path(
        "invoices/<int:invoice_id>/payment",
        finance.invoice_act,
        {"act": "payment"},
        name="operator_invoice_payment",
    ),
    path(
        "invoices/<int:invoice_id>/void",
        finance.invoice_act,
        {"act": "void"},
        name="operator_invoice_void",
    ),
    path(
        "invoices/<int:invoice_id>/write-off",
        finance.invoice_act,
        {"act": "write_off"},
        name="operator_invoice_write_off",
    ),
    path("credit-notes/<int:credit_note_id>.pdf", finance.credit_note_pdf, name="operator_credit_note_pdf"),
    path("organizations/<slug:slug>/money", finance.money, name="operator_money"),
    path("organizations/<slug:slug>/money/refund/<int:top_up_id>", finance.refund, name="operator_refund"),
    path("organizations/<slug:slug>/money/fees", finance.fee_new, name="operator_fee_new"),
    path("organizations/<slug:slug>/money/fees/<int:fee_id>/end", finance.fee_end, name="operator_fee_end"),
    path("organizations/<slug:slug>/money/exemption", finance.exemption, name="operator_exemption"),
    path("promo-codes", finance.promo_codes, name="operator_promo_codes"),
    path("promo-codes/<int:promo_code_id>/switch", finance.promo_code_switch, name="operator_promo_code_switch"),
    path("tax-rates", finance.tax_rates, name="operator_tax_rates"),
    path("payment-events", finance.payment_events, name="operator_events"),
    path("payment-events/<int:event_id>/replay", finance.payment_event_replay, name="operator_event_replay"),
    path("retention", operator_retention.page, name="operator_retention"),
    path("reconciliation", operator_reconciliation.reconciliation, name="operator_reconciliation"),
    path("reconciliation.csv", operator_reconciliation.rates_csv, name="operator_reconciliation_csv"),
    path("reconciliation/calls/<uuid:request_id>", operator_reconciliation.call, name="operator_call"),
    path("reconciliation/close", operator_reconciliation.close, name="operator_period_close"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.front, name="front"),
    path("home", home.home, name="home"),
    path("models", catalog.public_catalog, name="models"),
    path("models/<path:model_name>", catalog.public_model, name="public_model"),
    path("organizations/new", organizations.create, name="organization_new"),
    path("invitations/<str:token>", organizations.invitation, name="invitation"),
    path("account", users.profile, name="profile"),
    path("account/sessions", users.sessions, name="sessions"),
    path("account/sessions/<int:session_id>/end", users.end_session, name="session_end"),
    path("account/sessions/end", users.end_other_sessions, name="sessions_end"),
    path("dev/mailbox", mailbox.mailbox, name="mailbox"),
    path("dev/mailbox/<str:name>", mailbox.mail, name="mail"),
    path("texts/<str:language>.js", ScriptTexts.as_view(), name="script_texts"),
    path("design", home.design, name="design"),
    path("o/<slug:slug>/", include(organization_pages)),
    path("operator/", include(operator_pages)),
]

"""What Django serves of the API: management, its documents, webhooks. Inference is in api/routing.py."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularJSONAPIView

from api.rest.docs import inference_docs, management_docs
from api.rest.views import alerts, exports, governance, keys, money, organizations, purchases
from api.rest.views.operator import catalog as operator_catalog
from api.rest.views.operator import limits as operator_limits
from api.rest.views.operator import money as operator_money
from api.rest.views.operator import organizations as operator_organizations
from api.rest.views.operator import service as operator_service
from api.webhooks.stripe import stripe_webhook

app_name = "api"

organization_paths: list[URLPattern | URLResolver] = [
    path("restore", organizations.OrganizationRestore.as_view(), name="organization_restore"),
    path("transfer", organizations.OrganizationTransfer.as_view(), name="organization_transfer"),
    path("members", organizations.Members.as_view(), name="members"),
    path("members/<int:member_id>", organizations.MemberDetail.as_view(), name="member"),
    path("invitations", organizations.Invitations.as_view(), name="invitations"),
    path("invitations/<int:invitation_id>", organizations.InvitationDetail.as_view(), name="invitation"),
    path("projects", organizations.Projects.as_view(), name="projects"),
    path("projects/<slug:project_slug>", organizations.ProjectDetail.as_view(), name="project"),
    path("projects/<slug:project_slug>/archive", organizations.ProjectArchive.as_view(), name="project_archive"),
    path("projects/<slug:project_slug>/restore", organizations.ProjectRestore.as_view(), name="project_restore"),
    path("keys", keys.ApiKeys.as_view(), name="keys"),
    path("keys/<int:api_key_id>", keys.ApiKeyDetail.as_view(), name="key"),
    path("keys/<int:api_key_id>/rotate", keys.ApiKeyRotation.as_view(), name="key_rotate"),
    path("keys/<int:api_key_id>/retired-secrets", keys.RetiredSecrets.as_view(), name="retired_secrets"),
    path(
        "keys/<int:api_key_id>/retired-secrets/<int:retired_id>",
        keys.RetiredSecretDetail.as_view(),
        name="retired_secret",
    ),
    path("management-keys", keys.ManagementKeys.as_view(), name="management_keys"),
    path("management-keys/<int:key_id>", keys.ManagementKeyDetail.as_view(), name="management_key"),
    path("limits", governance.Limits.as_view(), name="limits"),
    path("limits/trial", governance.LimitTrial.as_view(), name="limit_trial"),
    path("limits/<int:limit_id>", governance.LimitDetail.as_view(), name="limit"),
    path("audit/file", governance.AuditFile.as_view(), name="audit_file"),
    path("audit", governance.Audit.as_view(), name="audit"),
    path("usage", money.Usage.as_view(), name="usage"),
    path("usage/summary", money.UsageSummary.as_view(), name="usage_summary"),
    path("usage/<uuid:request_id>", money.UsageRecordDetail.as_view(), name="usage_record"),
    path("prices", money.Prices.as_view(), name="prices"),
    path("credit", money.Credit.as_view(), name="credit"),
    path("ledger", money.Ledger.as_view(), name="ledger"),
    path("invoices", money.Invoices.as_view(), name="invoices"),
    path("invoices/<int:invoice_id>", money.InvoiceDetail.as_view(), name="invoice"),
    path("invoices/<int:invoice_id>/pdf", money.InvoicePdf.as_view(), name="invoice_pdf"),
    path("invoices/<int:invoice_id>/usage", money.InvoiceUsage.as_view(), name="invoice_usage"),
    path("credit-notes", money.CreditNotes.as_view(), name="credit_notes"),
    path("credit-notes/<int:credit_note_id>/pdf", money.CreditNotePdf.as_view(), name="credit_note_pdf"),
    path("top-ups", purchases.TopUps.as_view(), name="top_ups"),
    path("top-ups/<int:top_up_id>", purchases.TopUpDetail.as_view(), name="top_up"),
    path("promo-codes", purchases.PromoCodes.as_view(), name="promo_codes"),
    path("auto-recharge", purchases.AutoRecharge.as_view(), name="auto_recharge"),
    path("payment-page", purchases.PaymentPage.as_view(), name="payment_page"),
    path("exports", exports.Exports.as_view(), name="exports"),
    path("exports/<int:export_id>", exports.ExportDetail.as_view(), name="export"),
    path("exports/<int:export_id>/file", exports.ExportFile.as_view(), name="export_file"),
    path("billing-details", money.BillingDetails.as_view(), name="billing_details"),
    path("alert-rules", alerts.AlertRules.as_view(), name="alert_rules"),
    path("alert-rules/<int:rule_id>", alerts.AlertRuleDetail.as_view(), name="alert_rule"),
    path("alerts", alerts.Alerts.as_view(), name="alerts"),
    path("webhooks", alerts.Webhooks.as_view(), name="webhooks"),
    path("webhooks/<int:webhook_id>", alerts.WebhookDetail.as_view(), name="webhook"),
    path("webhooks/<int:webhook_id>/secret", alerts.WebhookSecret.as_view(), name="webhook_secret"),
    path("webhooks/<int:webhook_id>/test", alerts.WebhookTest.as_view(), name="webhook_test"),
    path("deliveries", alerts.Deliveries.as_view(), name="deliveries"),
    path("deliveries/<int:delivery_id>", alerts.DeliveryDetail.as_view(), name="delivery"),
    path("deliveries/<int:delivery_id>/resend", alerts.DeliveryResend.as_view(), name="delivery_resend"),
]

# Names begin with "operator_", so that they are nobody else's.
operator_paths: list[URLPattern | URLResolver] = [
    path("overview", operator_organizations.Overview.as_view(), name="operator_overview"),
    path("organizations", operator_organizations.Tenants.as_view(), name="operator_organizations"),
    path("organizations/<slug:slug>", operator_organizations.Tenant.as_view(), name="operator_organization"),
    path("organizations/<slug:slug>/credit", operator_organizations.TenantCredit.as_view(), name="operator_credit"),
    path("organizations/<slug:slug>/terms", operator_organizations.TenantTerms.as_view(), name="operator_terms"),
    path(
        "organizations/<slug:slug>/suspension",
        operator_organizations.TenantSuspension.as_view(),
        name="operator_suspension",
    ),
    path("organizations/<slug:slug>/money", operator_organizations.TenantMoney.as_view(), name="operator_money"),
    path(
        "organizations/<slug:slug>/top-ups/<int:top_up_id>/refunds",
        operator_organizations.TenantRefund.as_view(),
        name="operator_refund",
    ),
    path("organizations/<slug:slug>/fees", operator_organizations.TenantFees.as_view(), name="operator_fees"),
    path(
        "organizations/<slug:slug>/fees/<int:fee_id>/end",
        operator_organizations.TenantFeeEnd.as_view(),
        name="operator_fee_end",
    ),
    path(
        "organizations/<slug:slug>/tax-exemption",
        operator_organizations.TenantExemption.as_view(),
        name="operator_exemption",
    ),
    path("models", operator_catalog.CatalogModels.as_view(), name="operator_models"),
    path("models/<int:model_id>", operator_catalog.CatalogModel.as_view(), name="operator_model"),
    path("models/<int:model_id>/prices", operator_catalog.CatalogPrices.as_view(), name="operator_prices"),
    path(
        "models/<int:model_id>/prices/preview",
        operator_catalog.CatalogPricePreview.as_view(),
        name="operator_price_preview",
    ),
    path(
        "models/<int:model_id>/deployments",
        operator_catalog.ModelDeployments.as_view(),
        name="operator_model_deployments",
    ),
    path("deployments", operator_catalog.Deployments.as_view(), name="operator_deployments"),
    path("deployments/<int:deployment_id>", operator_catalog.Deployment.as_view(), name="operator_deployment"),
    path("discounts", operator_catalog.Discounts.as_view(), name="operator_discounts"),
    path("discounts/preview", operator_catalog.DiscountPreview.as_view(), name="operator_discount_preview"),
    path("discounts/<int:discount_id>/end", operator_catalog.DiscountEnd.as_view(), name="operator_discount_end"),
    path("agreed-prices", operator_catalog.AgreedPrices.as_view(), name="operator_agreed_prices"),
    path("volume-tiers", operator_catalog.VolumeTiers.as_view(), name="operator_volume_tiers"),
    path("volume-tiers/preview", operator_catalog.VolumeTiersPreview.as_view(), name="operator_volume_tiers_preview"),
    path("invoices", operator_money.IssuedInvoices.as_view(), name="operator_invoices"),
    path("invoices/month", operator_money.IssuedMonth.as_view(), name="operator_month"),
    path("invoices/<int:invoice_id>", operator_money.IssuedInvoice.as_view(), name="operator_invoice"),
    path("invoices/<int:invoice_id>/pdf", operator_money.IssuedInvoicePdf.as_view(), name="operator_invoice_pdf"),
    path("invoices/<int:invoice_id>/usage", operator_money.IssuedInvoiceUsage.as_view(), name="operator_invoice_usage"),
    path(
        "invoices/<int:invoice_id>/credit-notes",
        operator_money.InvoiceCreditNotes.as_view(),
        name="operator_invoice_credit_notes",
    ),
    path("invoices/<int:invoice_id>/payment", operator_money.InvoicePayment.as_view(), name="operator_invoice_payment"),
    path("invoices/<int:invoice_id>/void", operator_money.InvoiceVoid.as_view(), name="operator_invoice_void"),
    path(
        "invoices/<int:invoice_id>/write-off",
        operator_money.InvoiceWriteOff.as_view(),
        name="operator_invoice_write_off",
    ),
    path("invoice-runs", operator_money.InvoiceRuns.as_view(), name="operator_invoice_runs"),
    path("invoice-runs/<int:run_id>", operator_money.InvoiceRunDetail.as_view(), name="operator_invoice_run"),
    path(
        "invoice-runs/<int:run_id>/outcomes",
        operator_money.InvoiceRunOutcomes.as_view(),
        name="operator_invoice_run_outcomes",
    ),
    path(
        "invoice-runs/<int:run_id>/outcomes/<slug:slug>/retry",
        operator_money.InvoiceRunRetry.as_view(),
        name="operator_invoice_run_retry",
    ),
    path(
        "credit-notes/<int:credit_note_id>/pdf",
        operator_money.IssuedCreditNotePdf.as_view(),
        name="operator_credit_note_pdf",
    ),
    path("promo-codes", operator_money.IssuedCodes.as_view(), name="operator_promo_codes"),
    path("promo-codes/<int:promo_code_id>", operator_money.IssuedCode.as_view(), name="operator_promo_code"),
    path("tax-rates", operator_money.TaxRates.as_view(), name="operator_tax_rates"),
    path("payment-events", operator_money.PaymentEvents.as_view(), name="operator_payment_events"),
    path(
        "payment-events/<int:event_id>/replay",
        operator_money.PaymentEventReplay.as_view(),
        name="operator_payment_event_replay",
    ),
    path("limit-templates", operator_limits.LimitTemplates.as_view(), name="operator_limit_templates"),
    path(
        "limit-templates/<int:template_id>",
        operator_limits.LimitTemplateDetail.as_view(),
        name="operator_limit_template",
    ),
    path(
        "limit-templates/<int:template_id>/default",
        operator_limits.LimitTemplateDefault.as_view(),
        name="operator_limit_template_default",
    ),
    path(
        "limit-templates/<int:template_id>/retirement",
        operator_limits.LimitTemplateRetirement.as_view(),
        name="operator_limit_template_retirement",
    ),
    path(
        "limit-templates/<int:template_id>/organizations",
        operator_limits.LimitTemplateUses.as_view(),
        name="operator_limit_template_uses",
    ),
    path(
        "limit-templates/<int:template_id>/preview",
        operator_limits.LimitTemplatePreview.as_view(),
        name="operator_limit_template_preview",
    ),
    path(
        "limit-templates/<int:template_id>/runs",
        operator_limits.LimitTemplateRuns.as_view(),
        name="operator_limit_template_runs",
    ),
    path(
        "limit-template-runs/<int:template_run_id>",
        operator_limits.LimitTemplateRunDetail.as_view(),
        name="operator_limit_template_run",
    ),
    path(
        "organizations/<slug:slug>/limit-template",
        operator_limits.TenantLimitTemplate.as_view(),
        name="operator_organization_limit_template",
    ),
    path("operations", operator_service.Operations.as_view(), name="operator_operations"),
    path("capacity", operator_service.Capacity.as_view(), name="operator_capacity"),
    path("reconciliation", operator_service.Reconciliation.as_view(), name="operator_reconciliation"),
    path(
        "reconciliation/calls/<uuid:request_id>", operator_service.ComparedCall.as_view(), name="operator_compared_call"
    ),
    path("reconciliation/file", operator_service.ReconciliationFile.as_view(), name="operator_reconciliation_file"),
    path("reconciliation/closes", operator_service.PeriodCloses.as_view(), name="operator_period_closes"),
    path("retention", operator_service.Retention.as_view(), name="operator_retention"),
    path("audit", operator_service.ServiceAudit.as_view(), name="operator_audit"),
    path("audit/file", operator_service.ServiceAuditFile.as_view(), name="operator_audit_file"),
    path("keys", operator_service.OperatorKeys.as_view(), name="operator_keys"),
    path("keys/<int:operator_key_id>", operator_service.OperatorKeyDetail.as_view(), name="operator_key"),
]

urlpatterns = [
    path("api/docs", management_docs, name="docs"),
    path("api/docs/inference", inference_docs, name="inference_docs"),
    path("api/me", organizations.Me.as_view(), name="me"),
    path("api/models", money.Models.as_view(), name="models"),
    path("api/organizations", organizations.Organizations.as_view(), name="organizations"),
    path("api/organizations/<slug:slug>", organizations.OrganizationDetail.as_view(), name="organization"),
    path("api/organizations/<slug:slug>/", include(organization_paths)),
    path("api/operator/", include(operator_paths)),
    path("v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path("webhooks/stripe", stripe_webhook, name="stripe_webhook"),
]

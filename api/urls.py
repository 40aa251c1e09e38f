"""What Django serves of the API: management, its documents, webhooks. Inference is in api/routing.py."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularJSONAPIView

from api.rest.docs import inference_docs, management_docs
from api.rest.views import alerts, exports, governance, keys, money, organizations, purchases
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

urlpatterns = [
    path("api/docs", management_docs, name="docs"),
    path("api/docs/inference", inference_docs, name="inference_docs"),
    path("api/me", organizations.Me.as_view(), name="me"),
    path("api/models", money.Models.as_view(), name="models"),
    path("api/organizations", organizations.Organizations.as_view(), name="organizations"),
    path("api/organizations/<slug:slug>", organizations.OrganizationDetail.as_view(), name="organization"),
    path("api/organizations/<slug:slug>/", include(organization_paths)),
    path("v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path("webhooks/stripe", stripe_webhook, name="stripe_webhook"),
]

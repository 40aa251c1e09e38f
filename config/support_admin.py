"""How the support admin looks: our colours, and its pages in the order in which support needs them."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy

# Icons are names of the Material Symbols that come with the library.
_GROUPS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Customers",
        (
            ("Organizations", "apartment", "portal_organization"),
            ("Users", "person", "portal_user"),
            ("Members", "group", "portal_member"),
            ("Projects", "folder", "portal_project"),
            ("Invitations", "mark_email_unread", "portal_invitation"),
            ("API keys", "key", "portal_apikey"),
            ("Management keys", "vpn_key", "portal_managementkey"),
            ("Limits", "speed", "portal_quota"),
            ("Alerts", "notifications", "portal_alert"),
            ("Webhooks", "webhook", "portal_webhookendpoint"),
            ("Deliveries", "outbox", "portal_webhookdelivery"),
        ),
    ),
    (
        "Usage",
        (
            ("Records", "receipt_long", "billing_usagerecord"),
            ("Receipts", "fact_check", "billing_receipt"),
            ("Adjustments", "tune", "billing_usageadjustment"),
            ("Exports", "download", "billing_export"),
        ),
    ),
    (
        "Money",
        (
            ("Billing accounts", "account_balance", "billing_billingaccount"),
            ("Credit grants", "redeem", "billing_creditgrant"),
            ("Top-ups", "add_card", "billing_topup"),
            ("Refunds", "undo", "billing_refund"),
            ("Promo codes redeemed", "confirmation_number", "billing_promoredemption"),
            ("Ledger", "menu_book", "billing_ledgertransaction"),
            ("Prices", "sell", "billing_price"),
            ("Discounts", "percent", "billing_discount"),
            ("Invoices", "description", "billing_invoice"),
            ("Credit notes", "request_quote", "billing_creditnote"),
            ("Invoice runs", "event_repeat", "portal_invoicerun"),
            ("Pushes to the provider", "cloud_upload", "billing_invoicepush"),
            ("Payments", "payments", "billing_payment"),
            ("Payment events", "bolt", "billing_paymentevent"),
        ),
    ),
    (
        "Service",
        (
            ("Models", "deployed_code", "portal_model"),
            ("Deployments", "dns", "portal_deployment"),
            ("Periodic tasks", "schedule", "django_celery_beat_periodictask"),
        ),
    ),
    (
        "Sign-in",
        (
            ("Audit log", "history", "portal_auditevent"),
            ("E-mail addresses", "mail", "account_emailaddress"),
            ("Second factors", "shield_lock", "mfa_authenticator"),
            ("Single sign-on", "badge", "socialaccount_socialaccount"),
            ("Sessions", "devices", "usersessions_usersession"),
            ("Refused sign-ins", "gpp_bad", "axes_accessattempt"),
        ),
    ),
)


def _navigation() -> list[dict[str, Any]]:
    groups = [
        {
            "title": title,
            "items": [
                {"title": label, "icon": icon, "link": reverse_lazy(f"admin:{name}_changelist")}
                for label, icon, name in pages
            ],
        }
        for title, pages in _GROUPS
    ]
    operator = {"title": "Operator pages", "icon": "arrow_back", "link": reverse_lazy("portal:operator_home")}
    return [{"items": [operator]}, *groups]


# The accent of config/assets/css/tokens.css and its shades.
_ACCENT = {
    "50": "#eef0ff",
    "100": "#e0e3ff",
    "200": "#c7cbff",
    "300": "#a5a6ff",
    "400": "#8182f8",
    "500": "#6366f1",
    "600": "#4f46e5",
    "700": "#4338ca",
    "800": "#3730a3",
    "900": "#312e81",
    "950": "#1e1b4b",
}

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Token Factory",
    "SITE_HEADER": "Token Factory",
    "SITE_SUBHEADER": "Support",
    "SITE_ICON": lambda request: static("img/logo.svg"),
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("img/logo.svg")}],
    "COLORS": {"primary": _ACCENT},
    "SIDEBAR": {"show_search": True, "navigation": _navigation()},
}

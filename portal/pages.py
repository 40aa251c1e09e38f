"""Renders a page inside the portal's frame: navigation, organization switcher, credit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing.ledger import selectors as ledger
from portal.organizations import selectors as organizations
from portal.organizations.models import Member
from portal.permissions import Permission


@dataclass(frozen=True, slots=True)
class Link:
    label: str | Promise
    url: str
    icon: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Group:
    title: str | Promise
    links: list[Link]


Pages = list[tuple[str | Promise, list[tuple[str | Promise, str, str]]]]

# (title, [(label, icon, URL name)]): a view names the page that its own belongs to.
MEMBER_PAGES: Pages = [
    ("", [(_("Home"), "house", "dashboard"), (_("Playground"), "message-square-text", "playground")]),
    (
        _("Build"),
        [
            (_("API keys"), "key-round", "api_keys"),
            (_("Management keys"), "lock", "management_keys"),
            (_("Quick start"), "terminal", "quickstart"),
            (_("Models"), "boxes", "catalog"),
        ],
    ),
    (
        _("Manage"),
        [
            (_("Usage"), "chart-column", "usage"),
            (_("Billing"), "wallet", "billing"),
            (_("Exports"), "download", "exports"),
            (_("Limits"), "gauge", "limits"),
            (_("Alerts"), "bell", "alerts"),
            (_("Members"), "users", "members"),
            (_("Audit log"), "history", "audit"),
            (_("Settings"), "settings", "settings"),
        ],
    ),
]
OPERATOR_PAGES: Pages = [
    (
        "",
        [
            (_("Overview"), "house", "operator_home"),
            (_("Operations"), "activity", "operations"),
            (_("Organizations"), "building-2", "operator_organizations"),
            (_("Audit log"), "history", "operator_audit"),
            (_("Operator keys"), "lock", "operator_keys"),
        ],
    ),
    (
        _("Service"),
        [
            (_("Models and prices"), "boxes", "operator_models"),
            (_("Volume and discounts"), "tag", "operator_volume"),
            (_("Limit templates"), "gauge", "operator_limit_templates"),
            (_("Engines"), "server", "operator_engines"),
            (_("Capacity and cost"), "cpu", "capacity"),
        ],
    ),
    (
        _("Money"),
        [
            (_("Invoice run"), "receipt", "operator_invoices"),
            (_("Reconciliation"), "scale", "operator_reconciliation"),
            (_("Retention"), "clock", "operator_retention"),
            (_("Payment events"), "credit-card", "operator_events"),
            (_("Promo codes"), "gift", "operator_promo_codes"),
            (_("Tax rates"), "file-text", "operator_tax_rates"),
        ],
    ),
]

# Pages that not every member may open; the others are left out of their navigation.
NEEDED = {
    "playground": Permission.USE_PLAYGROUND,
    "management_keys": Permission.MANAGE_MANAGEMENT_KEYS,
    "alerts": Permission.VIEW_ALERTS,
    "audit": Permission.VIEW_AUDIT,
}


def _navigation(pages: Pages, section: str, member: Member | None) -> list[Group]:
    arguments = [member.organization.slug] if member else []
    return [
        Group(
            title,
            [
                Link(label, reverse(f"portal:{name}", args=arguments), icon, name == section)
                for label, icon, name in links
                if member is None or member.may(NEEDED.get(name, Permission.VIEW))
            ],
        )
        for title, links in pages
    ]


def member_page(
    request: HttpRequest, member: Member, section: str, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Two queries of its own: the switcher's organizations, and the balance."""
    balance = ledger.balance(member.organization_id)
    frame = {
        "organization": member.organization,
        "member": member,
        # For the templates: {% if may.manage_keys %}.
        "may": {permission.value: True for permission in Permission if member.may(permission)},
        "memberships": organizations.memberships_of(member.user),
        "navigation": _navigation(MEMBER_PAGES, section, member),
        "balance": balance,
        "balance_nano": balance.available_nano,
        "currency": balance.currency,
    }
    return render(request, template, frame | context, status=status)


def operator_page(
    request: HttpRequest, section: str, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    frame = {"navigation": _navigation(OPERATOR_PAGES, section, None), "is_operator_area": True}
    return render(request, template, frame | context, status=status)

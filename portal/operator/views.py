"""The operator's pages about organizations, and the overview."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.accounts import selectors as accounts
from billing.invoices import selectors as invoices
from billing.ledger import selectors as ledger
from billing.usage import selectors as usage
from portal import access
from portal.amounts import typed_amount
from portal.billing_pages import periods, services
from portal.catalog import selectors as catalog
from portal.catalog import status
from portal.limit_templates import selectors as limit_templates
from portal.operator import rows, tenants
from portal.operator import selectors as operator
from portal.operator.forms import ActingForm, CreditForm, SuspensionForm, TenantFilterForm, TermsForm
from portal.organizations import selectors
from portal.organizations import services as organization_services
from portal.organizations.models import Organization
from portal.pages import operator_page

PAGE_SIZE = 50


@login_required
def overview(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    now = timezone.now()
    deployments = catalog.deployments()
    statuses = status.read(deployment.id for deployment in deployments)
    context = {
        "service": operator.overview(now),
        "newest": list(selectors.search_organizations()[:5]),
        "models": catalog.all_models(),
        "deployments": deployments,
        "statuses": statuses,
        "down": status.silent(deployments, statuses),
    }
    return operator_page(request, "operator_home", "portal/operator/overview.html", context)


@login_required
def organizations(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    now, form = timezone.now(), TenantFilterForm(request.GET)
    filters = form.filters()
    page = Paginator(tenants.tenants(filters, now=now), PAGE_SIZE).get_page(request.GET.get("page"))
    ids = [organization.id for organization in page]
    balances = {row.organization_id: row for row in ledger.balances(ids)}
    spent = tenants.spent_this_month(ids, now=now)
    context = {
        "page": page,
        "rows": [(each, balances.get(each.id), spent.get(each.id, 0)) for each in page],
        "form": form,
        "is_filtered": bool(filters.search or filters.state),
        "month": f"{tenants.month_start(now):%Y-%m}",
    }
    return operator_page(request, "operator_organizations", "portal/operator/organizations.html", context)


@login_required
def organization(request: HttpRequest, slug: str) -> HttpResponse:
    access.require_operator(request.user)
    return _organization_page(request, rows.organization(slug))


def _organization_page(request: HttpRequest, organization: Organization, **forms: Any) -> HttpResponse:
    account = accounts.account_of(organization.id)
    month = periods.this_month()
    context = {
        "tenant": organization,
        "account": account,
        "balance": ledger.balance(organization.id),
        "members": selectors.members_of(organization),
        "grants": ledger.grants(organization.id),
        "month": periods.totals(usage.summary(organization.id, month.start, month.end)),
        "invoices": invoices.invoices_of(organization.id)[:12],
        "latest": usage.usage_page(organization.id, limit=8).rows,
        "credit_form": CreditForm(initial={"key": uuid.uuid4()}),
        "terms_form": TermsForm(initial={"credit_limit": typed_amount(account.credit_limit_nano)}),
        "suspension_form": SuspensionForm(),
        "acting_form": ActingForm(),
        "template_use": limit_templates.use_of(organization),
        "templates": limit_templates.offered(),
    }
    status = 400 if any(form.errors for form in forms.values()) else 200
    return operator_page(
        request, "operator_organizations", "portal/operator/organization.html", context | forms, status=status
    )


@login_required
@require_POST
def grant_credit(request: HttpRequest, slug: str) -> HttpResponse:
    actor = access.require_operator(request.user)
    organization = rows.organization(slug)
    form = CreditForm(request.POST)
    if not form.is_valid():
        return _organization_page(request, organization, credit_form=form)
    services.grant_credit(
        organization=organization,
        amount_nano=form.cleaned_data["amount"],
        reason=form.cleaned_data["reason"],
        key=f"operator:{form.cleaned_data['key']}",
        actor=actor,
    )
    messages.success(request, _("%(name)s has the credit.") % {"name": organization.name})
    return redirect("portal:operator_organization", slug)


@login_required
@require_POST
def change_terms(request: HttpRequest, slug: str) -> HttpResponse:
    actor = access.require_operator(request.user)
    organization = rows.organization(slug)
    form = TermsForm(request.POST)
    if not form.is_valid():
        return _organization_page(request, organization, terms_form=form)
    services.change_credit_limit(
        organization=organization,
        credit_limit_nano=form.cleaned_data["credit_limit"],
        actor=actor,
        reason=form.cleaned_data["reason"],
    )
    messages.success(request, _("The credit limit is set."))
    return redirect("portal:operator_organization", slug)


@login_required
@require_POST
def change_suspension(request: HttpRequest, slug: str) -> HttpResponse:
    """Suspends, or resumes when it is suspended."""
    actor = access.require_operator(request.user)
    organization = rows.organization(slug)
    form = SuspensionForm(request.POST)
    if not form.is_valid():
        return _organization_page(request, organization, suspension_form=form)
    is_suspended = request.POST.get("suspend") == "1"
    organization_services.set_suspended(
        organization=organization,
        is_suspended=is_suspended,
        actor=actor,
        reason=form.cleaned_data["reason"],
    )
    done = (
        _("%(name)s is suspended; its calls are refused from now on.")
        if is_suspended
        else _("%(name)s is active again.")
    )
    messages.success(request, done % {"name": organization.name})
    return redirect("portal:operator_organization", slug)

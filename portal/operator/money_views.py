"""The operator's pages about money: the invoice run."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.errors import InvalidPeriod
from billing.invoices import selectors as invoice_selectors
from billing.invoices.pdf import render as render_pdf
from billing.invoices.runs import Outcome
from billing.reconciliation.periods import is_closed
from portal import access
from portal.billing_pages.views import pdf_response
from portal.errors import NotPossible
from portal.operator import rows, services
from portal.operator import selectors as operator
from portal.operator.finance_views import invoice_forms
from portal.operator.forms import RunForm
from portal.organizations import selectors as organizations
from portal.pages import operator_page

PAGE_SIZE = 50


def _month(text: str) -> str:
    """The month asked for, else the present one."""
    form = RunForm({"period": text, "action": "preview"})
    return str(form.cleaned_data["period"]) if form.is_valid() else f"{timezone.localdate():%Y-%m}"


@login_required
def invoices(request: HttpRequest) -> HttpResponse:
    """The month's invoices and its last run; while that goes on, the page's part renews itself."""
    access.require_operator(request.user)
    period = _month(request.GET.get("period", ""))
    page = Paginator(invoice_selectors.invoices_page(period), PAGE_SIZE).get_page(request.GET.get("page"))
    by_id = organizations.organizations_by_id([row.organization_id for row in page])
    run = operator.invoice_runs().filter(period=period).order_by("-id").first()
    context = {
        "period": period,
        "form": RunForm(initial={"period": period}),
        "rows": [(row, by_id[row.organization_id]) for row in page],
        "page": page,
        "totals": invoice_selectors.totals_in(period),
        "run": run,
        "outcomes": operator.outcome_counts(run) if run else [],
        "is_closed": is_closed(period),
        "waits_for_close": settings.INVOICE_REQUIRE_CLOSED_PERIOD,
        "is_past": period < f"{timezone.localdate():%Y-%m}",
    }
    template = "portal/operator/_invoices.html" if _is_part(request) else "portal/operator/invoices.html"
    return operator_page(request, "operator_invoices", template, context)


def _is_part(request: HttpRequest) -> bool:
    """Whether the part that renews itself is asked for, and not the page."""
    return bool(request.headers.get("HX-Request")) and not request.headers.get("HX-Boosted")


@login_required
def run_detail(request: HttpRequest, run_id: int) -> HttpResponse:
    """What a run did with each account, by outcome and name; while it goes on, the list renews itself."""
    access.require_operator(request.user)
    found = rows.invoice_run(run_id)
    outcome, search, after = (request.GET.get(name, "").strip() for name in ("outcome", "q", "after"))
    if outcome not in operator.OUTCOME_LABELS:
        outcome = ""
    context = {
        "run": found,
        "outcomes": operator.outcome_counts(found),
        "outcome": outcome,
        "search": search,
        "after": after,
        "labels": operator.OUTCOME_LABELS,
        "page": operator.outcome_page(
            found, outcome=outcome, search=search, after=int(after) if after.isdigit() else None, limit=PAGE_SIZE
        ),
    }
    template = "portal/operator/_run_outcomes.html" if _is_part(request) else "portal/operator/invoice_run.html"
    return operator_page(request, "operator_invoices", template, context)


@login_required
@require_POST
def retry(request: HttpRequest, run_id: int, slug: str) -> HttpResponse:
    """Once more for one customer who failed."""
    actor = access.require_operator(request.user)
    found, organization = rows.invoice_run(run_id), rows.organization(slug)
    try:
        tried = services.retry_account(run=found, organization=organization, actor=actor)
    except NotPossible as error:
        messages.error(request, str(error))
    else:
        words = {"name": organization.name}
        if tried.outcome == Outcome.FAILED:
            messages.error(request, _("%(name)s failed again; the reason stands below.") % words)
        else:
            messages.success(request, _("%(name)s went through.") % words)
    response = redirect("portal:operator_run", found.id)
    response["Location"] += "?outcome=failed"
    return response


@login_required
@require_POST
def run(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = RunForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Enter a month as YYYY-MM, such as 2026-11."))
        return redirect("portal:operator_invoices")
    period = form.cleaned_data["period"]
    try:
        services.start_run(period=period, is_preview=form.is_preview(), actor=actor)
    except InvalidPeriod as error:
        messages.error(request, str(error))
    response = redirect("portal:operator_invoices")
    response["Location"] += f"?period={period}"
    return response


@login_required
def invoice(request: HttpRequest, invoice_id: int) -> HttpResponse:
    access.require_operator(request.user)
    found = rows.invoice(invoice_id)
    tenant = organizations.organizations_by_id([found.organization_id])[found.organization_id]
    context = {"invoice": found, "printed": invoice_selectors.document(found, get_language() or ""), "tenant": tenant}
    context["is_unclosed"] = operator.was_issued_before_close(found)
    context |= invoice_forms(found, invoice_selectors.due_minor(found))
    return operator_page(request, "operator_invoices", "portal/operator/invoice.html", context)


@login_required
def invoice_pdf(request: HttpRequest, invoice_id: int) -> HttpResponse:
    access.require_operator(request.user)
    found = rows.invoice(invoice_id)
    return pdf_response(found, render_pdf(found))

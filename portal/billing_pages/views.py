"""Credit, ledger and invoices for members. Reads billing's selectors only."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from billing.accounts import selectors as accounts
from billing.accounts.services import ADDRESS_FIELDS
from billing.invoices import selectors as invoices
from billing.invoices.models import Invoice
from billing.invoices.pdf import render as render_pdf
from billing.ledger import selectors as ledger_selectors
from portal import access
from portal.billing_pages import periods, services
from portal.billing_pages.forms import BillingDetailsForm
from portal.organizations.models import Organization
from portal.pages import member_page
from portal.permissions import Permission

LEDGER_PAGE_SIZE = 50


@login_required
def billing(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    organization_id = member.organization_id
    context = {
        "account": accounts.account_of(organization_id),
        "grants": ledger_selectors.grants(organization_id),
        "entries": ledger_selectors.statement(organization_id, limit=8),
        "invoices": invoices.invoices_of(organization_id),
        "month_start": periods.this_month().start,
        "can_change": member.may(Permission.MANAGE_BILLING),
    }
    return member_page(request, member, "billing", "portal/billing/billing.html", context)


@login_required
def ledger(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    before = request.GET.get("before", "")
    entries = ledger_selectors.statement(
        member.organization_id, before=int(before) if before.isdigit() else None, limit=LEDGER_PAGE_SIZE + 1
    )
    context = {
        "entries": entries[:LEDGER_PAGE_SIZE],
        "next": entries[LEDGER_PAGE_SIZE - 1].entry_id if len(entries) > LEDGER_PAGE_SIZE else None,
        "before": before,
    }
    return member_page(request, member, "billing", "portal/billing/ledger.html", context)


@login_required
def details(request: HttpRequest, slug: str) -> HttpResponse:
    """Whom the next invoices are addressed to; admins only."""
    member = access.member_for(request.user, slug, Permission.MANAGE_BILLING)
    account = accounts.account_of(member.organization_id)
    form = BillingDetailsForm(request.POST or None, initial={name: getattr(account, name) for name in ADDRESS_FIELDS})
    if request.method == "POST" and form.is_valid():
        services.change_billing_details(organization=member.organization, address=form.address(), actor=member.user)
        messages.success(request, "The billing details are saved. Issued invoices keep theirs.")
        return redirect("portal:billing", slug)
    status = 400 if form.errors else 200
    return member_page(request, member, "billing", "portal/billing/details.html", {"form": form}, status=status)


def _invoice_of(organization: Organization, invoice_id: int) -> Invoice:
    found = invoices.find_invoice(invoice_id)
    if found is None or found.organization_id != organization.id:
        raise Http404("No such invoice.")
    return found


@login_required
def invoice(request: HttpRequest, slug: str, invoice_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug)
    found = _invoice_of(member.organization, invoice_id)
    context = {"invoice": found, "printed": invoices.document(found)}
    return member_page(request, member, "billing", "portal/billing/invoice.html", context)


@login_required
def invoice_pdf(request: HttpRequest, slug: str, invoice_id: int) -> HttpResponse:
    found = _invoice_of(access.organization_for(request.user, slug), invoice_id)
    return pdf_response(found, render_pdf(found))


def pdf_response(invoice: Invoice, pdf: bytes) -> HttpResponse:
    name = f"invoice-{invoice.number or f'draft-{invoice.period}'}.pdf"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(pdf, content_type="application/pdf", headers=headers)

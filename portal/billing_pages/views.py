"""Credit, ledger and invoices for members. Reads billing's selectors only."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from billing.accounts import selectors as accounts
from billing.accounts.services import ADDRESS_FIELDS
from billing.errors import InvalidAccount, RecordsRetired
from billing.invoices import annex
from billing.invoices import selectors as invoices
from billing.invoices.models import CreditNote, Invoice
from billing.invoices.pdf import render as render_pdf
from billing.invoices.pdf import render_credit_note
from billing.ledger import selectors as ledger_selectors
from billing.tax.checks import last_check
from billing.usage import selectors as usage
from portal import access
from portal.billing_pages import periods, services
from portal.billing_pages.credit_forms import LanguageForm
from portal.billing_pages.figures import days_left
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
        "spent_nano": usage.spent_nano(organization_id, *periods.this_month()),
        "days_left": days_left(organization_id, ledger_selectors.balance(organization_id).available_nano),
        "can_change": member.may(Permission.MANAGE_BILLING),
        "overdue": invoices.overdue_of(organization_id),
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
    language_form = LanguageForm(request.POST or None, initial={"language": account.language})
    if request.method == "POST" and form.is_valid() and language_form.is_valid():
        language = language_form.cleaned_data["language"]
        try:
            services.change_billing_details(organization=member.organization, address=form.address(), actor=member.user)
            services.change_language(organization=member.organization, language=language, actor=member.user)
        except InvalidAccount as error:
            form.add_error(error.field if error.field in form.fields else None, str(error))
        else:
            messages.success(request, _("The billing details are saved. Issued invoices keep theirs."))
            return redirect("portal:billing", slug)
    context = {"form": form, "language_form": language_form, "tax_check": last_check(account.tax_id)}
    status = 400 if form.errors or language_form.errors else 200
    return member_page(request, member, "billing", "portal/billing/details.html", context, status=status)


def _invoice_of(organization: Organization, invoice_id: int) -> Invoice:
    found = invoices.find_invoice(invoice_id)
    if found is None or found.organization_id != organization.id:
        raise Http404("No such invoice.")
    return found


@login_required
def invoice(request: HttpRequest, slug: str, invoice_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug)
    found = _invoice_of(member.organization, invoice_id)
    context = {
        "invoice": found,
        "printed": invoices.document(found, get_language() or ""),
        "credit_notes": invoices.credit_notes_of(found),
        "due_minor": invoices.due_minor(found),
    }
    return member_page(request, member, "billing", "portal/billing/invoice.html", context)


@login_required
def invoice_pdf(request: HttpRequest, slug: str, invoice_id: int) -> HttpResponse:
    found = _invoice_of(access.organization_for(request.user, slug), invoice_id)
    return pdf_response(found, render_pdf(found))


@login_required
def invoice_annex(request: HttpRequest, slug: str, invoice_id: int) -> HttpResponse:
    return annex_response(_invoice_of(access.organization_for(request.user, slug), invoice_id))


@login_required
def credit_note_pdf(request: HttpRequest, slug: str, credit_note_id: int) -> HttpResponse:
    organization = access.organization_for(request.user, slug)
    found = invoices.find_credit_note(credit_note_id)
    if found is None or found.invoice.organization_id != organization.id:
        raise Http404("No such credit note.")
    return credit_note_response(found)


def credit_note_response(note: CreditNote) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="credit-note-{note.number}.pdf"'}
    return HttpResponse(render_credit_note(note), content_type="application/pdf", headers=headers)


def annex_response(invoice: Invoice) -> HttpResponse:
    """The usage behind an invoice, as CSV; 410 once retention has removed it."""
    name = f"invoice-{invoice.number or f'draft-{invoice.period}'}-usage.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    try:
        body = annex.render(invoice)
    except RecordsRetired as error:
        return HttpResponse(str(error), status=410, content_type="text/plain; charset=utf-8")
    return HttpResponse(body, content_type="text/csv; charset=utf-8", headers=headers)


def pdf_response(invoice: Invoice, pdf: bytes) -> HttpResponse:
    name = f"invoice-{invoice.number or f'draft-{invoice.period}'}.pdf"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(pdf, content_type="application/pdf", headers=headers)

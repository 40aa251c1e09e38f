"""The operator's pages about money beside the run: codes, tax, events, one organization's money, acts on an invoice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.accounts import selectors as accounts
from billing.credits import selectors as credits_
from billing.errors import BillingError, InvalidFee, InvalidTaxRate, PromoCodeRefused
from billing.fees import selectors as fees
from billing.invoices import selectors as invoices
from billing.invoices.models import Invoice
from billing.payments import events
from billing.payments.models import EventOutcome
from billing.tax import selectors as tax
from portal import access
from portal.billing_pages.views import annex_response, credit_note_response
from portal.operator import finance_services as services
from portal.operator import rows
from portal.operator.finance_forms import (
    CreditNoteForm,
    ExemptionForm,
    FeeEndForm,
    FeeForm,
    PaymentForm,
    PromoCodeForm,
    ReasonForm,
    RefundForm,
    TaxRateForm,
    with_amount_due,
)
from portal.organizations.models import Organization
from portal.pages import operator_page

PAGE_SIZE = 50


@login_required
def promo_codes(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = PromoCodeForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            made = services.make_promo_code(
                code=data["code"],
                description=data["description"],
                amount_nano=data["amount"],
                currency=data["currency"],
                max_redemptions=data["max_redemptions"],
                valid_until=data["valid_until"],
                credit_days=data["credit_days"],
                actor=actor,
            )
        except PromoCodeRefused as error:
            form.add_error("code", str(error))
        except BillingError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("The code is %(code)s.") % {"code": made.code})
            return redirect("portal:operator_promo_codes")
    page = Paginator(credits_.promo_codes(), PAGE_SIZE).get_page(request.GET.get("page"))
    status = 400 if form.errors else 200
    context = {"form": form, "page": page}
    return operator_page(request, "operator_promo_codes", "portal/operator/promo_codes.html", context, status=status)


@login_required
@require_POST
def promo_code_switch(request: HttpRequest, promo_code_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.promo_code(promo_code_id)
    services.set_promo_code_active(promo_code=found, is_active=not found.is_active, actor=actor)
    done = _("%(code)s is off.") if found.is_active else _("%(code)s is on.")
    messages.success(request, done % {"code": found})
    return redirect("portal:operator_promo_codes")


@login_required
def tax_rates(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = TaxRateForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.set_tax_rate(**form.cleaned_data, actor=actor)
        except InvalidTaxRate as error:
            form.add_error(error.field, str(error))
        else:
            messages.success(request, _("The rate is set. Issued invoices keep theirs."))
            return redirect("portal:operator_tax_rates")
    context = {"form": form, "rates": tax.all_rates()}
    status = 400 if form.errors else 200
    return operator_page(request, "operator_tax_rates", "portal/operator/tax_rates.html", context, status=status)


@login_required
def payment_events(request: HttpRequest) -> HttpResponse:
    """What the provider told, newest first; those that a person should look at can be worked again."""
    access.require_operator(request.user)
    outcome = request.GET.get("outcome", "")
    outcome = outcome if outcome in EventOutcome.values else ""
    page = Paginator(events.recent_events(outcome=outcome), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "outcome": outcome,
        "outcomes": EventOutcome.choices,
        "open_outcomes": [str(each) for each in events.OPEN_OUTCOMES],
        "open_count": events.open_event_count(),
    }
    return operator_page(request, "operator_events", "portal/operator/payment_events.html", context)


@login_required
@require_POST
def payment_event_replay(request: HttpRequest, event_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.payment_event(event_id)
    services.replay_event(event=found, actor=actor)
    messages.success(request, _("%(event_id)s is worked again.") % {"event_id": found.event_id})
    return redirect("portal:operator_events")


@login_required
def money(request: HttpRequest, slug: str) -> HttpResponse:
    access.require_operator(request.user)
    return _money_page(request, rows.organization(slug))


def _money_page(request: HttpRequest, tenant: Organization, **forms: Any) -> HttpResponse:
    account = accounts.account_of(tenant.id)
    currency = account.currency
    purchases = [
        (row, with_amount_due(RefundForm, row.left_minor, currency, key=uuid.uuid4()))
        for row in credits_.refundable_top_ups(tenant.id)
    ]
    context = {
        "tenant": tenant,
        "account": account,
        "currency": currency,
        "purchases": purchases,
        "fees": fees.fees_of(tenant.id),
        "fee_form": FeeForm(currency=currency),
        "fee_end_form": FeeEndForm(),
        "exemption_form": ExemptionForm(initial={"tax_exemption": account.tax_exemption}),
    }
    status = 400 if any(form.errors for form in forms.values()) else 200
    return operator_page(
        request, "operator_organizations", "portal/operator/money.html", context | forms, status=status
    )


@login_required
@require_POST
def refund(request: HttpRequest, slug: str, top_up_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.top_up(rows.organization(slug), top_up_id)
    form = RefundForm(request.POST, currency=found.currency)

    def act() -> None:
        services.refund(
            top_up=found,
            amount_minor=form.cleaned_data["amount"],
            reason=form.cleaned_data["reason"],
            key=f"operator:{form.cleaned_data['key']}",
            actor=actor,
        )

    _try(request, form, act, _("The money is on its way back."))
    return redirect("portal:operator_money", slug)


@login_required
@require_POST
def fee_new(request: HttpRequest, slug: str) -> HttpResponse:
    actor = access.require_operator(request.user)
    tenant = rows.organization(slug)
    form = FeeForm(request.POST, currency=accounts.account_of(tenant.id).currency)
    if form.is_valid():
        data = form.cleaned_data
        try:
            services.add_fee(
                organization=tenant,
                name=data["name"],
                quantity=data["quantity"],
                unit_amount_minor=data["unit_amount"],
                starts_on=data["starts_on"],
                actor=actor,
            )
        except InvalidFee as error:
            form.add_error(error.field if error.field in form.fields else None, str(error))
        else:
            messages.success(request, _("The fee is agreed; it stands on the next invoice."))
            return redirect("portal:operator_money", slug)
    return _money_page(request, tenant, fee_form=form)


@login_required
@require_POST
def fee_end(request: HttpRequest, slug: str, fee_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    tenant = rows.organization(slug)
    found = rows.fee_id(tenant, fee_id)
    form = FeeEndForm(request.POST)

    def act() -> None:
        services.end_fee(organization=tenant, fee_id=found, ends_on=form.cleaned_data["ends_on"], actor=actor)

    _try(request, form, act, _("The fee ends then."))
    return redirect("portal:operator_money", slug)


@login_required
@require_POST
def exemption(request: HttpRequest, slug: str) -> HttpResponse:
    actor = access.require_operator(request.user)
    tenant = rows.organization(slug)
    form = ExemptionForm(request.POST)
    if not form.is_valid():
        return _money_page(request, tenant, exemption_form=form)
    services.set_exemption(organization=tenant, tax_exemption=form.cleaned_data["tax_exemption"], actor=actor)
    messages.success(request, _("The exemption is saved; issued invoices keep their tax."))
    return redirect("portal:operator_money", slug)


def _try(request: HttpRequest, form: Any, act: Callable[[], None], done: Any) -> None:
    """Do it if the form is good; what is refused is said on the page that follows."""
    if not form.is_valid():
        for name, errors in form.errors.items():
            messages.error(request, f"{name.replace('_', ' ').capitalize()}: {' '.join(errors)}")
        return
    try:
        act()
    except BillingError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)


def invoice_forms(invoice: Invoice, due_minor: int) -> dict[str, Any]:
    """What an operator can do about an invoice, for its page."""
    left_minor = invoice.total_minor - invoices.credited_minor(invoice)
    return {
        "credit_note_form": with_amount_due(
            CreditNoteForm, due_minor or left_minor, invoice.currency, key=uuid.uuid4()
        ),
        "void_form": ReasonForm(prefix="void"),
        "write_off_form": ReasonForm(prefix="write_off"),
        "payment_form": PaymentForm(),
        "credit_notes": invoices.credit_notes_of(invoice),
        "due_minor": due_minor,
        "left_minor": left_minor,
    }


@login_required
@require_POST
def invoice_act(request: HttpRequest, invoice_id: int, act: str) -> HttpResponse:
    """One of the four buttons of an invoice."""
    actor = access.require_operator(request.user)
    found = rows.invoice(invoice_id)
    if act == "credit":
        note = CreditNoteForm(request.POST, currency=found.currency)
        _try(
            request,
            note,
            lambda: services.credit_invoice(
                invoice=found,
                total_minor=note.cleaned_data["amount"],
                reason=note.cleaned_data["reason"],
                key=f"operator:{note.cleaned_data['key']}",
                actor=actor,
            ),
            _("The credit note is issued."),
        )
    elif act == "payment":
        payment = PaymentForm(request.POST)
        _try(
            request,
            payment,
            lambda: services.record_payment(invoice=found, reference=payment.cleaned_data["reference"], actor=actor),
            _("The payment is booked."),
        )
    else:
        form = ReasonForm(request.POST, prefix=act)
        done = (
            _("The invoice is void; its usage is free for another.")
            if act == "void"
            else _("The invoice is written off.")
        )
        take = services.void_invoice if act == "void" else services.write_off
        _try(request, form, lambda: take(invoice=found, reason=form.cleaned_data["reason"], actor=actor), done)
    return redirect("portal:operator_invoice", invoice_id)


@login_required
def invoice_annex(request: HttpRequest, invoice_id: int) -> HttpResponse:
    access.require_operator(request.user)
    return annex_response(rows.invoice(invoice_id))


@login_required
def credit_note_pdf(request: HttpRequest, credit_note_id: int) -> HttpResponse:
    access.require_operator(request.user)
    return credit_note_response(rows.credit_note(credit_note_id))

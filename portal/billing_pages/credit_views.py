"""Buying credit, redeeming codes, auto-recharge, and the provider's own payment page."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_POST

from billing.accounts import selectors as accounts
from billing.credits import selectors as credits_
from billing.credits import topups
from billing.errors import BillingError, InvalidAmount, NoCardKept, PromoCodeRefused
from billing.payments.configuration import takes_payments
from portal import access
from portal.billing_pages import services
from portal.billing_pages.credit_forms import AutoRechargeForm, PromoForm, TopUpForm
from portal.organizations.models import Member
from portal.pages import member_page
from portal.permissions import Permission


@login_required
def credit(request: HttpRequest, slug: str) -> HttpResponse:
    """Everything about getting credit, on one page."""
    return _page(request, access.member_for(request.user, slug, Permission.MANAGE_BILLING))


def _page(request: HttpRequest, member: Member, **forms: Any) -> HttpResponse:
    account = accounts.account_of(member.organization_id)
    recharge = credits_.auto_recharge_of(member.organization_id, now=timezone.now())
    rule = recharge.rule
    digits = {"currency": account.currency}
    context = {
        "account": account,
        "takes_payments": takes_payments(),
        "top_ups": credits_.top_ups_of(member.organization_id)[:20],
        "recharge": recharge,
        "top_up_form": TopUpForm(initial={"amount": "25", "key": uuid.uuid4()}, **digits),
        "promo_form": PromoForm(),
        "recharge_form": AutoRechargeForm(
            initial={
                "is_enabled": bool(rule and rule.is_enabled),
                "threshold": _typed(rule.threshold_minor if rule else 5_00),
                "amount": _typed(rule.amount_minor if rule else 25_00),
                "ceiling": _typed(rule.monthly_ceiling_minor if rule else 200_00),
            },
            **digits,
        ),
    }
    status = 400 if any(form.errors for form in forms.values()) else 200
    return member_page(request, member, "billing", "portal/billing/credit.html", context | forms, status=status)


def _typed(amount_minor: int) -> str:
    return f"{amount_minor // 100}.{amount_minor % 100:02d}".removesuffix(".00")


@login_required
@require_POST
def top_up_new(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_BILLING)
    account = accounts.account_of(member.organization_id)
    form = TopUpForm(request.POST, currency=account.currency)
    if form.is_valid():
        path = reverse("portal:top_up", args=[slug, 0]).replace("/0", "/{id}")
        try:
            top_up = services.buy_credit(
                organization=member.organization,
                amount_minor=form.cleaned_data["amount"],
                keeps_card=form.cleaned_data["keeps_card"],
                key=f"portal:{form.cleaned_data['key']}",
                return_url=f"{settings.PUBLIC_URL}{path}",
                actor=member.user,
            )
        except InvalidAmount as error:
            form.add_error("amount", str(error))
        except BillingError as error:
            form.add_error(None, _("The payment page could not be opened. %(error)s") % {"error": error})
        else:
            return redirect("portal:top_up", slug, top_up.id)
    return _page(request, member, top_up_form=form)


@login_required
def top_up(request: HttpRequest, slug: str, top_up_id: int) -> HttpResponse:
    """The way to the provider's page and back: asks how the payment stands, and says it."""
    member = access.member_for(request.user, slug, Permission.MANAGE_BILLING)
    found = credits_.find_top_up(top_up_id)
    if found is None or found.organization_id != member.organization_id:
        raise Http404("No such purchase.")
    context = {"top_up": topups.refresh(found) if takes_payments() else found}
    return member_page(request, member, "billing", "portal/billing/top_up.html", context)


@login_required
@require_POST
def redeem(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_BILLING)
    form = PromoForm(request.POST)
    if form.is_valid():
        try:
            services.redeem_code(organization=member.organization, text=form.cleaned_data["code"], actor=member.user)
        except PromoCodeRefused as error:
            form.add_error("code", str(error))
        else:
            messages.success(request, _("The code is redeemed; its credit is yours."))
            return redirect("portal:credit", slug)
    return _page(request, member, promo_form=form)


@login_required
@require_POST
def auto_recharge(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_BILLING)
    form = AutoRechargeForm(request.POST, currency=accounts.account_of(member.organization_id).currency)
    if form.is_valid():
        try:
            services.change_auto_recharge(
                organization=member.organization,
                is_enabled=form.cleaned_data["is_enabled"],
                threshold_minor=form.cleaned_data["threshold"],
                amount_minor=form.cleaned_data["amount"],
                monthly_ceiling_minor=form.cleaned_data["ceiling"],
                actor=member.user,
            )
        except NoCardKept as error:
            form.add_error("is_enabled", str(error))
        except InvalidAmount as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("Auto-recharge is saved."))
            return redirect("portal:credit", slug)
    return _page(request, member, recharge_form=form)


@login_required
@require_GET
def payment_page(request: HttpRequest, slug: str) -> HttpResponse:
    """The way to the provider's own page, where cards are changed and receipts lie; its link is for this visit."""
    member = access.member_for(request.user, slug, Permission.MANAGE_BILLING)
    back = f"{settings.PUBLIC_URL}{reverse('portal:credit', args=[slug])}"
    try:
        context = {"url": services.payment_page(organization=member.organization, return_url=back)}
    except BillingError as error:
        context = {"error": str(error)}
    return member_page(request, member, "billing", "portal/billing/payment_page.html", context)

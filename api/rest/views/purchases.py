"""Buying credit, redeeming codes, auto-recharge."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.http import Http404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import NO_STORE, ManagementView, by_id, check_form, lists, page, read_body
from api.rest.serializers.purchases import (
    AutoRechargeSerializer,
    NewTopUpSerializer,
    PaymentPageSerializer,
    PromoCodeSerializer,
    RedeemedSerializer,
    TopUpSerializer,
)
from billing.accounts.selectors import account_of
from billing.credits import selectors, topups
from billing.money import from_minor, to_decimal
from billing.payments.configuration import takes_payments
from portal import access
from portal.billing_pages import services
from portal.billing_pages.credit_forms import AutoRechargeForm, TopUpForm
from portal.permissions import Permission

TAG = "usage and billing"


class TopUps(ManagementView):
    @lists("list_top_ups", TopUpSerializer, tag=TAG, summary="Purchases of credit, newest first")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        return page(request, by_id(selectors.top_ups_of(organization.id)), TopUpSerializer)

    @extend_schema(operation_id="buy_credit", tags=[TAG], request=NewTopUpSerializer, responses={201: TopUpSerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Open a payment page. Credit comes when a person has paid there, at the `url` of the answer."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        wanted = read_body(NewTopUpSerializer(data=request.data))
        wanted.setdefault("key", uuid.uuid4())
        form = TopUpForm(wanted, currency=account_of(organization.id).currency)
        check_form(form)
        path = reverse("portal:top_up", args=[slug, 0]).replace("/0", "/{id}")
        made = services.buy_credit(
            organization=organization,
            amount_minor=form.cleaned_data["amount"],
            keeps_card=form.cleaned_data["keeps_card"],
            # A key of one organization is not another's.
            key=f"api:{organization.id}:{form.cleaned_data['key']}",
            return_url=f"{settings.PUBLIC_URL}{path}",
            actor=self.person,
        )
        return Response(TopUpSerializer(made).data, status=201, headers=NO_STORE)


class TopUpDetail(ManagementView):
    @extend_schema(operation_id="show_top_up", tags=[TAG], responses=TopUpSerializer)
    def get(self, request: Request, slug: str, top_up_id: int) -> Response:
        """How one purchase stands, as the payment provider says."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        found = selectors.find_top_up(top_up_id)
        if found is None or found.organization_id != organization.id:
            raise Http404("No such purchase.")
        return Response(TopUpSerializer(topups.refresh(found) if takes_payments() else found).data)


class PromoCodes(ManagementView):
    @extend_schema(
        operation_id="redeem_code", tags=[TAG], request=PromoCodeSerializer, responses={201: RedeemedSerializer}
    )
    def post(self, request: Request, slug: str) -> Response:
        """Redeem a code for credit, once for an organization. Whoever tries too many wrong ones waits."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        wanted = read_body(PromoCodeSerializer(data=request.data))
        grant = services.redeem_code(organization=organization, text=wanted["code"], actor=self.person)
        return Response(RedeemedSerializer(grant).data, status=201)


class AutoRecharge(ManagementView):
    @extend_schema(operation_id="show_auto_recharge", tags=[TAG], responses=AutoRechargeSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Whether credit is bought when it runs low, and what was bought so this month."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        return Response(_recharge(organization.id))

    @extend_schema(
        operation_id="set_auto_recharge",
        tags=[TAG],
        request=AutoRechargeSerializer,
        responses=AutoRechargeSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Set it. It needs a kept card: buy credit with `keeps_card` first."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        wanted = read_body(AutoRechargeSerializer(data=request.data))
        wanted["ceiling"] = wanted.pop("monthly_ceiling")
        form = AutoRechargeForm(wanted, currency=account_of(organization.id).currency)
        check_form(form)
        services.change_auto_recharge(
            organization=organization,
            is_enabled=form.cleaned_data["is_enabled"],
            threshold_minor=form.cleaned_data["threshold"],
            amount_minor=form.cleaned_data["amount"],
            monthly_ceiling_minor=form.cleaned_data["ceiling"],
            actor=self.person,
        )
        return Response(_recharge(organization.id))


def _recharge(organization_id: int) -> dict[str, Any]:
    state = selectors.auto_recharge_of(organization_id, now=timezone.now())
    rule, currency = state.rule, account_of(organization_id).currency

    def written(amount_minor: int) -> str:
        return f"{to_decimal(from_minor(amount_minor, currency)).normalize():f}"

    return {
        "is_enabled": rule is not None and rule.is_enabled,
        "threshold": written(rule.threshold_minor if rule else 0),
        "amount": written(rule.amount_minor if rule else 0),
        "monthly_ceiling": written(rule.monthly_ceiling_minor if rule else 0),
        "spent_this_month": written(state.spent_minor),
        "paused_at": rule.paused_at if rule else None,
        "paused_reason": rule.paused_reason if rule else "",
    }


class PaymentPage(ManagementView):
    @extend_schema(operation_id="open_payment_page", tags=[TAG], request=None, responses=PaymentPageSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """A link to the provider's own page, where a person changes cards and finds receipts. It ends soon."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        back = f"{settings.PUBLIC_URL}{reverse('portal:credit', args=[slug])}"
        url = services.payment_page(organization=organization, return_url=back)
        return Response({"url": url}, headers=NO_STORE)

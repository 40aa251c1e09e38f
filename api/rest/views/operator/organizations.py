"""The overview, organizations, and what an operator does to one: credit, terms, suspension, refunds, fees, tax."""

from __future__ import annotations

import uuid
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import OperatorView, check_form, known_query, lists, page, read_body
from api.rest.serializers.operator_organizations import (
    ExemptionSerializer,
    FeeEndSerializer,
    FeeSerializer,
    NewCreditSerializer,
    NewFeeSerializer,
    NewRefundSerializer,
    OverviewSerializer,
    SuspensionSerializer,
    TenantDetailSerializer,
    TenantMoneySerializer,
    TenantSerializer,
    TermsSerializer,
)
from billing.accounts.selectors import account_of
from billing.credits import selectors as credits_
from billing.fees import selectors as fees
from billing.ledger import selectors as ledger
from portal.billing_pages import services
from portal.operator import finance_services as finance
from portal.operator import rows, selectors, tenants
from portal.operator.finance_forms import ExemptionForm, FeeEndForm, FeeForm, RefundForm
from portal.operator.forms import CreditForm, SuspensionForm, TenantFilterForm, TermsForm
from portal.organizations import services as organization_services

TAG = "operator: organizations"


class Overview(OperatorView):
    @extend_schema(operation_id="operator_overview", tags=[TAG], responses=OverviewSerializer)
    def get(self, request: Request) -> Response:
        """The service in four figures."""
        return Response(OverviewSerializer(selectors.overview(timezone.now())).data)


class Tenants(OperatorView):
    @lists(
        "operator_list_organizations",
        TenantSerializer,
        tag=TAG,
        summary="Every organization with its balance",
        filters=[
            OpenApiParameter("q", str, description="Part of a name, a slug or a member's address."),
            OpenApiParameter("state", str, enum=tenants.State.values, description="All if not given."),
            OpenApiParameter(
                "order", str, enum=tenants.Order.values, description="Newest first if not given; spend is this month's."
            ),
        ],
    )
    def get(self, request: Request) -> Response:
        form = TenantFilterForm(request.query_params)
        known_query(request, "q", "state", "order")
        check_form(form)
        now = timezone.now()

        def with_money(after: int | None, limit: int) -> Any:
            found, following = tenants.tenants_after(form.filters(), after=after, limit=limit, now=now)
            ids = [each.id for each in found]
            balances.update({row.organization_id: row for row in ledger.balances(ids)})
            spent.update(tenants.spent_this_month(ids, now=now))
            return found, following

        balances: dict[int, Any] = {}
        spent: dict[int, int] = {}
        return page(request, with_money, TenantSerializer, balances=balances, spent=spent)


def _tenant(slug: str) -> dict[str, Any]:
    tenant = rows.organization(slug)
    tenant.member_count = tenant.members.count()  # type: ignore[attr-defined]  # for the serializer alone
    tenant.account = account_of(tenant.id)  # type: ignore[attr-defined]
    tenant.balance = ledger.balance(tenant.id)  # type: ignore[attr-defined]
    tenant.grants = ledger.grants(tenant.id)  # type: ignore[attr-defined]
    shown: dict[str, Any] = TenantDetailSerializer(tenant).data
    return shown


class Tenant(OperatorView):
    @extend_schema(operation_id="operator_show_organization", tags=[TAG], responses=TenantDetailSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """One organization with its terms, balance and credit grants."""
        return Response(_tenant(slug))


class TenantCredit(OperatorView):
    @extend_schema(
        operation_id="operator_give_credit",
        tags=[TAG],
        request=NewCreditSerializer,
        responses={201: TenantDetailSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Give credit. With a `key` of your own a repeat gives nothing more."""
        tenant = rows.organization(slug)
        form = CreditForm(_with_key(read_body(NewCreditSerializer(data=request.data))))
        check_form(form)
        services.grant_credit(
            organization=tenant,
            amount_nano=form.cleaned_data["amount"],
            reason=form.cleaned_data["reason"],
            key=f"operator:{form.cleaned_data['key']}",
            actor=self.person,
        )
        return Response(_tenant(slug), status=201)


def _with_key(wanted: dict[str, Any]) -> dict[str, Any]:
    return {"key": uuid.uuid4()} | wanted


class TenantTerms(OperatorView):
    @extend_schema(
        operation_id="operator_set_terms", tags=[TAG], request=TermsSerializer, responses=TenantDetailSerializer
    )
    def put(self, request: Request, slug: str) -> Response:
        """Set how far the organization may owe."""
        tenant = rows.organization(slug)
        form = TermsForm(read_body(TermsSerializer(data=request.data)))
        check_form(form)
        services.change_credit_limit(
            organization=tenant,
            credit_limit_nano=form.cleaned_data["credit_limit"],
            actor=self.person,
            reason=form.cleaned_data["reason"],
        )
        return Response(_tenant(slug))


class TenantSuspension(OperatorView):
    @extend_schema(
        operation_id="operator_set_suspension",
        tags=[TAG],
        request=SuspensionSerializer,
        responses=TenantDetailSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Suspend it, so that its calls are refused within two seconds, or let it call again."""
        tenant = rows.organization(slug)
        wanted = read_body(SuspensionSerializer(data=request.data))
        form = SuspensionForm(wanted)
        check_form(form)
        organization_services.set_suspended(
            organization=tenant,
            is_suspended=wanted["is_suspended"],
            actor=self.person,
            reason=form.cleaned_data["reason"],
        )
        return Response(_tenant(slug))


class TenantMoney(OperatorView):
    @extend_schema(operation_id="operator_show_money", tags=[TAG], responses=TenantMoneySerializer)
    def get(self, request: Request, slug: str) -> Response:
        """What was bought and can be refunded, monthly fees, tax exemption."""
        tenant = rows.organization(slug)
        account = account_of(tenant.id)
        shown = {
            "currency": account.currency,
            "tax_exemption": account.tax_exemption,
            "purchases": credits_.refundable_top_ups(tenant.id),
            "fees": fees.fees_of(tenant.id),
        }
        return Response(TenantMoneySerializer(shown).data)


class TenantRefund(OperatorView):
    @extend_schema(operation_id="operator_refund", tags=[TAG], request=NewRefundSerializer, responses={204: None})
    def post(self, request: Request, slug: str, top_up_id: int) -> Response:
        """Pay unspent credit of a purchase back."""
        top_up = rows.top_up(rows.organization(slug), top_up_id)
        form = RefundForm(_with_key(read_body(NewRefundSerializer(data=request.data))), currency=top_up.currency)
        check_form(form)
        finance.refund(
            top_up=top_up,
            amount_minor=form.cleaned_data["amount"],
            reason=form.cleaned_data["reason"],
            key=f"operator:{form.cleaned_data['key']}",
            actor=self.person,
        )
        return Response(status=204)


class TenantFees(OperatorView):
    @extend_schema(
        operation_id="operator_add_fee", tags=[TAG], request=NewFeeSerializer, responses={201: FeeSerializer(many=True)}
    )
    def post(self, request: Request, slug: str) -> Response:
        """Agree a monthly fee; it stands on the next invoice. Answers with all fees."""
        tenant = rows.organization(slug)
        form = FeeForm(read_body(NewFeeSerializer(data=request.data)), currency=account_of(tenant.id).currency)
        check_form(form)
        finance.add_fee(
            organization=tenant,
            name=form.cleaned_data["name"],
            quantity=form.cleaned_data["quantity"],
            unit_amount_minor=form.cleaned_data["unit_amount"],
            starts_on=form.cleaned_data["starts_on"],
            actor=self.person,
        )
        return Response(FeeSerializer(fees.fees_of(tenant.id), many=True).data, status=201)


class TenantFeeEnd(OperatorView):
    @extend_schema(
        operation_id="operator_end_fee", tags=[TAG], request=FeeEndSerializer, responses=FeeSerializer(many=True)
    )
    def post(self, request: Request, slug: str, fee_id: int) -> Response:
        """End a fee."""
        tenant = rows.organization(slug)
        found = rows.fee_id(tenant, fee_id)
        form = FeeEndForm(read_body(FeeEndSerializer(data=request.data)))
        check_form(form)
        finance.end_fee(organization=tenant, fee_id=found, ends_on=form.cleaned_data["ends_on"], actor=self.person)
        return Response(FeeSerializer(fees.fees_of(tenant.id), many=True).data)


class TenantExemption(OperatorView):
    @extend_schema(
        operation_id="operator_set_exemption",
        tags=[TAG],
        request=ExemptionSerializer,
        responses=ExemptionSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Charge no tax for a reason, or charge it again; issued invoices keep theirs."""
        tenant = rows.organization(slug)
        form = ExemptionForm(read_body(ExemptionSerializer(data=request.data)))
        check_form(form)
        exemption = form.cleaned_data["tax_exemption"]
        finance.set_exemption(organization=tenant, tax_exemption=exemption, actor=self.person)
        return Response({"tax_exemption": exemption})

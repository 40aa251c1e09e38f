"""Usage, prices, credit, invoices, billing details, models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import ManagementView, by_id, lists, page, page_of, read_body, read_query
from api.rest.serializers.money import (
    BillingDetailsSerializer,
    CreditSerializer,
    InvoiceDetailSerializer,
    InvoiceSerializer,
    LedgerEntrySerializer,
    ModelSerializer,
    PriceSerializer,
    UsageQuery,
    UsageRecordSerializer,
    UsageSummaryQuery,
    UsageSumsSerializer,
)
from api.rest.serializers.purchases import CreditNoteSerializer
from billing.accounts.selectors import account_of
from billing.accounts.services import ADDRESS_FIELDS
from billing.invoices import selectors as invoices
from billing.invoices.pdf import render
from billing.ledger import selectors as ledger
from billing.pricing.selectors import current_price
from billing.usage.selectors import Ranking, UsageFilters, ranking, record, summary, usage_page
from portal import access
from portal.billing_pages.services import change_billing_details, change_language
from portal.billing_pages.views import annex_response, credit_note_response
from portal.catalog.selectors import published_models
from portal.permissions import Permission

TAG = "usage and billing"
# Groups of usage that are never cut, in the order of time.
TIME_GROUPS = ("hour", "day", "month")


class Usage(ManagementView):
    @extend_schema(
        operation_id="list_usage",
        tags=[TAG],
        parameters=[UsageQuery],
        responses=page_of("Usage", UsageRecordSerializer),
    )
    def get(self, request: Request, slug: str) -> Response:
        """Usage records, newest first, a page at a time."""
        organization = access.organization_for(self.person, slug)
        wanted = read_query(UsageQuery, request)
        after, limit = wanted.pop("after", None), wanted.pop("limit")
        try:
            found = usage_page(organization.id, filters=UsageFilters(**wanted), after=after, limit=limit)
        except ValueError as error:
            raise ValidationError({"after": [str(error)]}) from error
        return Response({"data": UsageRecordSerializer(found.rows, many=True).data, "next": found.next})


class UsageRecordDetail(ManagementView):
    @extend_schema(operation_id="show_usage", tags=[TAG], responses=UsageRecordSerializer)
    def get(self, request: Request, slug: str, request_id: Any) -> Response:
        """The record of one call, by the request id of its answer."""
        found = record(access.organization_for(self.person, slug).id, request_id)
        if found is None:
            raise Http404("No such call.")
        return Response(UsageRecordSerializer(found.record).data)


class UsageSummary(ManagementView):
    @extend_schema(operation_id="sum_usage", tags=[TAG], parameters=[UsageSummaryQuery], responses=UsageSumsSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Sums of usage and cost over a span of time; the same that pages and invoices show. Of more groups than
        `limit`, those of the highest cost, and all others together in `rest`."""
        organization = access.organization_for(self.person, slug)
        wanted = read_query(UsageSummaryQuery, request)
        if wanted["end"] <= wanted["start"]:
            raise ValidationError({"end": ["The end must be after the start."]})
        span = (organization.id, wanted["start"], wanted["end"], wanted["group_by"])
        if wanted["group_by"] in TIME_GROUPS:
            found = Ranking(summary(*span, time_zone=organization.time_zone), None, 0)
        else:
            found = ranking(*span, limit=wanted["limit"])
            found.rows.sort(key=lambda row: row.key)
        return Response(UsageSumsSerializer(found).data)


class Prices(ManagementView):
    @extend_schema(operation_id="list_prices", tags=[TAG], responses=PriceSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """What each offered model costs this organization now, per million tokens."""
        organization = access.organization_for(self.person, slug)
        now = timezone.now()
        found = [current_price(model.name, now, organization.id) for model in published_models()]
        return Response({"data": PriceSerializer([each for each in found if each], many=True).data, "next": None})


class Credit(ManagementView):
    @extend_schema(operation_id="show_credit", tags=[TAG], responses=CreditSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """What is left, and the grants in the order in which they are used."""
        organization = access.organization_for(self.person, slug)
        balance = ledger.balance(organization.id)
        fields = {
            "currency": balance.currency,
            "available_nano": balance.available_nano,
            "grants": ledger.grants(organization.id),
        }
        return Response(CreditSerializer(fields).data)


class Ledger(ManagementView):
    @lists("list_ledger", LedgerEntrySerializer, tag=TAG, summary="Ledger entries, newest first")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug)

        def load(after: int | None, limit: int) -> tuple[Sequence[Any], int | None]:
            rows = ledger.statement(organization.id, before=after, limit=limit + 1)
            return rows[:limit], rows[limit - 1].entry_id if len(rows) > limit else None

        return page(request, load, LedgerEntrySerializer)


class Invoices(ManagementView):
    @lists("list_invoices", InvoiceSerializer, tag=TAG, summary="Invoices, newest first, drafts included")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug)
        return page(request, by_id(invoices.invoices_of(organization.id)), InvoiceSerializer)


def _invoice(view: ManagementView, slug: str, invoice_id: int) -> Any:
    organization = access.organization_for(view.person, slug)
    found = invoices.find_invoice(invoice_id)
    if found is None or found.organization_id != organization.id:
        raise Http404("No such invoice.")
    return found


def with_lines(found: Any) -> Any:
    """The invoice with its lines as InvoiceDetailSerializer wants them."""
    lines = []
    for line, description in invoices.described_lines(found):
        line.description = description  # type: ignore[attr-defined]  # for the serializer alone
        lines.append(line)
    found.described_lines = lines
    return found


class InvoiceDetail(ManagementView):
    @extend_schema(operation_id="show_invoice", tags=[TAG], responses=InvoiceDetailSerializer)
    def get(self, request: Request, slug: str, invoice_id: int) -> Response:
        """One invoice with its lines."""
        return Response(InvoiceDetailSerializer(with_lines(_invoice(self, slug, invoice_id))).data)


class InvoicePdf(ManagementView):
    @extend_schema(
        operation_id="show_invoice_pdf", tags=[TAG], responses={(200, "application/pdf"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, slug: str, invoice_id: int) -> HttpResponse:
        """The invoice as PDF."""
        found = _invoice(self, slug, invoice_id)
        name = f"invoice-{found.number or f'draft-{found.period}'}.pdf"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return HttpResponse(render(found), content_type="application/pdf", headers=headers)


class InvoiceUsage(ManagementView):
    @extend_schema(operation_id="download_invoice_usage", tags=[TAG], responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request, slug: str, invoice_id: int) -> HttpResponse:
        """The calls behind an invoice, as CSV; 410 once their time is over."""
        return annex_response(_invoice(self, slug, invoice_id))


class CreditNotes(ManagementView):
    @lists("list_credit_notes", CreditNoteSerializer, tag=TAG, summary="Credit notes, newest first")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug)
        return page(request, by_id(invoices.all_credit_notes_of(organization.id)), CreditNoteSerializer)


class CreditNotePdf(ManagementView):
    @extend_schema(
        operation_id="show_credit_note_pdf", tags=[TAG], responses={(200, "application/pdf"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, slug: str, credit_note_id: int) -> HttpResponse:
        """The credit note as PDF."""
        organization = access.organization_for(self.person, slug)
        found = invoices.find_credit_note(credit_note_id)
        if found is None or found.invoice.organization_id != organization.id:
            raise Http404("No such credit note.")
        return credit_note_response(found)


class BillingDetails(ManagementView):
    @extend_schema(operation_id="show_billing_details", tags=[TAG], responses=BillingDetailsSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """Whom the next invoices are addressed to."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        return Response(BillingDetailsSerializer(account_of(organization.id)).data)

    @extend_schema(
        operation_id="change_billing_details",
        tags=[TAG],
        request=BillingDetailsSerializer,
        responses=BillingDetailsSerializer,
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change them; invoices that are issued keep theirs."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_BILLING)
        wanted = read_body(BillingDetailsSerializer(data=request.data, partial=True))
        account = account_of(organization.id)
        language = wanted.pop("language", account.language)
        whole = {name: wanted.get(name, getattr(account, name)) for name in ADDRESS_FIELDS}
        change_language(organization=organization, language=language, actor=self.person)
        change_billing_details(organization=organization, address=whole, actor=self.person)
        return Response(BillingDetailsSerializer(account_of(organization.id)).data)


class Models(ManagementView):
    @extend_schema(operation_id="list_models", tags=["models"], responses=ModelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The models that are offered."""
        return Response({"data": ModelSerializer(published_models(), many=True).data, "next": None})

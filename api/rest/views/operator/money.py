"""Invoices and their runs, promo codes, tax rates, payment events."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import OperatorView, by_id, check_form, known_query, lists, page, page_of, read_body, read_query
from api.rest.serializers.operator_money import (
    BecauseSerializer,
    CodeSwitchSerializer,
    IssuedCodeSerializer,
    IssuedInvoiceDetailSerializer,
    IssuedInvoiceSerializer,
    MonthQuery,
    MonthSerializer,
    NewCodeSerializer,
    NewCreditNoteSerializer,
    NewRunSerializer,
    OutcomeQuery,
    PaymentEventSerializer,
    PaymentSerializer,
    RunOutcomeSerializer,
    RunSerializer,
    TaxRateSerializer,
)
from api.rest.serializers.operator_organizations import minor_text
from api.rest.views.money import with_lines
from billing.credits import selectors as credits_
from billing.invoices import selectors as invoices
from billing.invoices.pdf import render as render_pdf
from billing.payments import events
from billing.reconciliation.periods import is_closed
from billing.tax import selectors as tax
from portal.billing_pages.views import annex_response, credit_note_response, pdf_response
from portal.operator import finance_services as finance
from portal.operator import rows, selectors, services
from portal.operator.finance_forms import CreditNoteForm, PaymentForm, PromoCodeForm, ReasonForm, TaxRateForm

TAG = "operator: money"
_PERIOD = OpenApiParameter("period", str, description="YYYY-MM; the present month if not given.")


def _period(request: Request) -> str:
    # The rest of the query is the page's.
    known_query(request, "period")
    asked = {"period": request.query_params["period"]} if "period" in request.query_params else {}
    query = MonthQuery(data=asked)
    query.is_valid(raise_exception=True)
    return str(query.validated_data.get("period", f"{timezone.localdate():%Y-%m}"))


class IssuedInvoices(OperatorView):
    @lists(
        "operator_list_invoices",
        IssuedInvoiceSerializer,
        tag=TAG,
        summary="A month's invoices, newest first, drafts included",
        filters=[_PERIOD],
    )
    def get(self, request: Request) -> Response:
        found = invoices.invoices_page(_period(request)).select_related("organization")
        return page(request, by_id(found), IssuedInvoiceSerializer)


class IssuedMonth(OperatorView):
    @extend_schema(operation_id="operator_show_month", tags=[TAG], parameters=[_PERIOD], responses=MonthSerializer)
    def get(self, request: Request) -> Response:
        """A month's invoices in sums, and its newest run."""
        period = _period(request)
        totals = invoices.totals_in(period)
        shown = {
            "period": period,
            "is_closed": is_closed(period),
            "states": totals.states,
            "totals": {
                currency: minor_text(amount_minor, currency) for currency, amount_minor in totals.total_minor.items()
            },
            "run": selectors.invoice_runs().filter(period=period).order_by("-id").first(),
        }
        return Response(MonthSerializer(shown).data)


class InvoiceRuns(OperatorView):
    @lists("operator_list_invoice_runs", RunSerializer, tag=TAG, summary="Runs and previews of months, newest first")
    def get(self, request: Request) -> Response:
        return page(request, by_id(selectors.invoice_runs()), RunSerializer)

    @extend_schema(
        operation_id="operator_start_invoice_run", tags=[TAG], request=NewRunSerializer, responses={202: RunSerializer}
    )
    def post(self, request: Request) -> Response:
        """Preview a month, or number and freeze its invoices. It can be repeated, and bills nothing twice."""
        wanted = read_body(NewRunSerializer(data=request.data))
        run = services.start_run(period=wanted["period"], is_preview=wanted["is_preview"], actor=self.person)
        return Response(RunSerializer(run).data, status=202)


class InvoiceRunDetail(OperatorView):
    @extend_schema(operation_id="operator_show_invoice_run", tags=[TAG], responses=RunSerializer)
    def get(self, request: Request, run_id: int) -> Response:
        """How far it is, and what it did."""
        return Response(RunSerializer(rows.invoice_run(run_id)).data)


class InvoiceRunOutcomes(OperatorView):
    @extend_schema(
        operation_id="operator_list_invoice_run_outcomes",
        tags=[TAG],
        parameters=[OutcomeQuery],
        responses=page_of("OperatorRunOutcomes", RunOutcomeSerializer),
    )
    def get(self, request: Request, run_id: int) -> Response:
        """What the run did with each account, in its own order, by organization id."""
        run = rows.invoice_run(run_id)
        query = read_query(OutcomeQuery, request)
        found = selectors.outcome_page(
            run, outcome=query["outcome"], search=query["q"], after=query.get("after"), limit=query["limit"]
        )
        data = RunOutcomeSerializer(found.rows, many=True).data
        return Response({"data": data, "next": found.next and str(found.next)})


class InvoiceRunRetry(OperatorView):
    @extend_schema(operation_id="operator_retry_invoice_run", tags=[TAG], request=None, responses=RunOutcomeSerializer)
    def post(self, request: Request, run_id: int, slug: str) -> Response:
        """Once more for a customer who failed in a run that is over; one who did not fail is left as is."""
        run, organization = rows.invoice_run(run_id), rows.organization(slug)
        tried = services.retry_account(run=run, organization=organization, actor=self.person)
        return Response(RunOutcomeSerializer(tried).data)


def _invoice(invoice_id: int) -> dict[str, Any]:
    found: Any = with_lines(rows.invoice(invoice_id))
    found.due_minor = invoices.due_minor(found)
    found.notes = invoices.credit_notes_of(found)
    found.is_issued_before_close = selectors.was_issued_before_close(found)
    shown: dict[str, Any] = IssuedInvoiceDetailSerializer(found).data
    return shown


class IssuedInvoice(OperatorView):
    @extend_schema(operation_id="operator_show_invoice", tags=[TAG], responses=IssuedInvoiceDetailSerializer)
    def get(self, request: Request, invoice_id: int) -> Response:
        """One invoice with its lines, credit notes and what is due."""
        return Response(_invoice(invoice_id))


class IssuedInvoicePdf(OperatorView):
    @extend_schema(
        operation_id="operator_show_invoice_pdf", tags=[TAG], responses={(200, "application/pdf"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, invoice_id: int) -> HttpResponse:
        """The invoice as PDF."""
        found = rows.invoice(invoice_id)
        return pdf_response(found, render_pdf(found))


class IssuedInvoiceUsage(OperatorView):
    @extend_schema(
        operation_id="operator_download_invoice_usage", tags=[TAG], responses={(200, "text/csv"): OpenApiTypes.STR}
    )
    def get(self, request: Request, invoice_id: int) -> HttpResponse:
        """The calls behind an invoice, as CSV; 410 once their time is over."""
        return annex_response(rows.invoice(invoice_id))


class InvoiceCreditNotes(OperatorView):
    @extend_schema(
        operation_id="operator_credit_invoice",
        tags=[TAG],
        request=NewCreditNoteSerializer,
        responses={201: IssuedInvoiceDetailSerializer},
    )
    def post(self, request: Request, invoice_id: int) -> Response:
        """Issue a credit note. With a `key` of your own a repeat issues no second one."""
        found = rows.invoice(invoice_id)
        wanted = {"key": uuid.uuid4()} | read_body(NewCreditNoteSerializer(data=request.data))
        form = CreditNoteForm(wanted, currency=found.currency)
        check_form(form)
        finance.credit_invoice(
            invoice=found,
            total_minor=form.cleaned_data["amount"],
            reason=form.cleaned_data["reason"],
            key=f"operator:{form.cleaned_data['key']}",
            actor=self.person,
        )
        return Response(_invoice(invoice_id), status=201)


class InvoicePayment(OperatorView):
    @extend_schema(
        operation_id="operator_record_payment",
        tags=[TAG],
        request=PaymentSerializer,
        responses=IssuedInvoiceDetailSerializer,
    )
    def post(self, request: Request, invoice_id: int) -> Response:
        """Book money that came outside of the provider, for all that is due."""
        found = rows.invoice(invoice_id)
        form = PaymentForm(read_body(PaymentSerializer(data=request.data)))
        check_form(form)
        finance.record_payment(invoice=found, reference=form.cleaned_data["reference"], actor=self.person)
        return Response(_invoice(invoice_id))


class InvoiceVoid(OperatorView):
    @extend_schema(
        operation_id="operator_void_invoice",
        tags=[TAG],
        request=BecauseSerializer,
        responses=IssuedInvoiceDetailSerializer,
    )
    def post(self, request: Request, invoice_id: int) -> Response:
        """Void it; its usage is free for another invoice."""
        found = rows.invoice(invoice_id)
        finance.void_invoice(invoice=found, reason=_reason(request), actor=self.person)
        return Response(_invoice(invoice_id))


def _reason(request: Request) -> str:
    form = ReasonForm(read_body(BecauseSerializer(data=request.data)))
    check_form(form)
    return str(form.cleaned_data["reason"])


class InvoiceWriteOff(OperatorView):
    @extend_schema(
        operation_id="operator_write_off_invoice",
        tags=[TAG],
        request=BecauseSerializer,
        responses=IssuedInvoiceDetailSerializer,
    )
    def post(self, request: Request, invoice_id: int) -> Response:
        """Give up what is due."""
        found = rows.invoice(invoice_id)
        finance.write_off(invoice=found, reason=_reason(request), actor=self.person)
        return Response(_invoice(invoice_id))


class IssuedCreditNotePdf(OperatorView):
    @extend_schema(
        operation_id="operator_show_credit_note_pdf",
        tags=[TAG],
        responses={(200, "application/pdf"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, credit_note_id: int) -> HttpResponse:
        """A credit note as PDF."""
        return credit_note_response(rows.credit_note(credit_note_id))


class IssuedCodes(OperatorView):
    @lists("operator_list_promo_codes", IssuedCodeSerializer, tag=TAG, summary="Promo codes, newest first")
    def get(self, request: Request) -> Response:
        return page(request, by_id(credits_.promo_codes()), IssuedCodeSerializer)

    @extend_schema(
        operation_id="operator_make_promo_code",
        tags=[TAG],
        request=NewCodeSerializer,
        responses={201: IssuedCodeSerializer},
    )
    def post(self, request: Request) -> Response:
        """Make a code that gives credit, once for an organization."""
        form = PromoCodeForm(read_body(NewCodeSerializer(data=request.data)))
        check_form(form)
        data = form.cleaned_data
        made = finance.make_promo_code(
            code=data["code"],
            description=data["description"],
            amount_nano=data["amount"],
            currency=data["currency"],
            max_redemptions=data["max_redemptions"],
            valid_until=data["valid_until"],
            credit_days=data["credit_days"],
            actor=self.person,
        )
        return Response(IssuedCodeSerializer(made).data, status=201)


class IssuedCode(OperatorView):
    @extend_schema(
        operation_id="operator_switch_promo_code",
        tags=[TAG],
        request=CodeSwitchSerializer,
        responses=IssuedCodeSerializer,
    )
    def patch(self, request: Request, promo_code_id: int) -> Response:
        """Switch a code on or off; credit that it gave stays."""
        found = rows.promo_code(promo_code_id)
        wanted = read_body(CodeSwitchSerializer(data=request.data))
        if wanted["is_active"] != found.is_active:
            finance.set_promo_code_active(promo_code=found, is_active=wanted["is_active"], actor=self.person)
        return Response(IssuedCodeSerializer(rows.promo_code(promo_code_id)).data)


class TaxRates(OperatorView):
    @extend_schema(
        operation_id="operator_list_tax_rates", tags=[TAG], responses=page_of("OperatorTaxRates", TaxRateSerializer)
    )
    def get(self, request: Request) -> Response:
        """Every version of every country's rate."""
        return Response({"data": TaxRateSerializer(tax.all_rates(), many=True).data, "next": None})

    @extend_schema(operation_id="operator_set_tax_rate", tags=[TAG], request=TaxRateSerializer, responses={204: None})
    def post(self, request: Request) -> Response:
        """Set a country's rate from a day on; issued invoices keep theirs."""
        form = TaxRateForm(read_body(TaxRateSerializer(data=request.data)))
        check_form(form)
        finance.set_tax_rate(**form.cleaned_data, actor=self.person)
        return Response(status=204)


class PaymentEvents(OperatorView):
    @lists(
        "operator_list_payment_events",
        PaymentEventSerializer,
        tag=TAG,
        summary="What the payment provider told, newest first",
        filters=[OpenApiParameter("outcome", str, enum=events.OUTCOMES, description="Of one outcome only.")],
    )
    def get(self, request: Request) -> Response:
        known_query(request, "outcome")
        outcome = request.query_params.get("outcome", "")
        if outcome and outcome not in events.OUTCOMES:
            raise ValidationError({"outcome": [f"Use one of {', '.join(events.OUTCOMES)}."]})
        return page(request, by_id(events.recent_events(outcome=outcome)), PaymentEventSerializer)


class PaymentEventReplay(OperatorView):
    @extend_schema(
        operation_id="operator_replay_payment_event", tags=[TAG], request=None, responses={202: PaymentEventSerializer}
    )
    def post(self, request: Request, event_id: int) -> Response:
        """Work an event again; what it did is not done twice."""
        found = rows.payment_event(event_id)
        finance.replay_event(event=found, actor=self.person)
        return Response(PaymentEventSerializer(found).data, status=202)

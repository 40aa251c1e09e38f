"""How the service runs and what it costs, reconciliation, retention, the audit log of everything, operator keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import OperatorView, by_id, check_form, lists, page, page_of, read_body, read_query
from api.rest.serializers.operator_service import (
    CapacityQuery,
    CapacitySerializer,
    CloseSerializer,
    CountsSerializer,
    MismatchSerializer,
    NewCloseSerializer,
    OperationsQuery,
    OperationsSerializer,
    OperatorKeySerializer,
    ReconciliationSerializer,
    RetentionSerializer,
    ServiceAuditEventSerializer,
    ServiceAuditQuery,
    compared,
)
from billing.reconciliation import periods
from billing.usage.partitions import retired_months
from portal.api_keys import operator_keys
from portal.audit import selectors as audit
from portal.audit.views import file_response
from portal.operations import economics
from portal.operations import selectors as operations
from portal.operations.forms import CapacityForm, ViewForm
from portal.operator import rows, selectors, services
from portal.operator.forms import PeriodForm
from portal.operator.reconciliation_views import rates_response
from portal.retention import kept

TAG = "operator: service"


class Operations(OperatorView):
    @extend_schema(
        operation_id="operator_show_operations",
        tags=[TAG],
        parameters=[OperationsQuery],
        responses=OperationsSerializer,
    )
    def get(self, request: Request) -> Response:
        """Latency, throughput, failures, refusals and queues over a range, and sums by model, deployment or tenant."""
        form = ViewForm(read_query(OperationsQuery, request))
        check_form(form)
        return Response(operations.view(form.filters(), now=timezone.now()))


class Capacity(OperatorView):
    @extend_schema(
        operation_id="operator_show_capacity", tags=[TAG], parameters=[CapacityQuery], responses=CapacitySerializer
    )
    def get(self, request: Request) -> Response:
        """What a million tokens of each model cost and bring, and how many GPUs the demand needs."""
        form = CapacityForm(read_query(CapacityQuery, request))
        check_form(form)
        found = economics.by_model(
            gpus=form.cleaned_data["gpus"],
            gpu_hour_nano=form.gpu_hour_nano,
            load=form.load_share,
            tokens_per_s=form.cleaned_data["tokens_per_s"],
            now=timezone.now(),
        )
        return Response(CapacitySerializer({"data": found}).data)


def _named(row: Any, tenant: Any, **more: Any) -> dict[str, Any]:
    """The row's figures under their names, with the organization's slug."""
    figures = {str(name): getattr(row, str(name)) for name in CountsSerializer().fields if hasattr(row, str(name))}
    return {**figures, "organization": None if tenant is None else tenant.slug, **more}


def _mismatch(row: selectors.MismatchRow) -> dict[str, Any]:
    return {
        "request_id": row.mismatch.request_id,
        "organization": row.organization and row.organization.slug,
        "match_class": row.mismatch.match_class,
        "is_settled": row.mismatch.is_settled,
        "age_s": int(row.mismatch.age.total_seconds()),
        **compared(row.comparison),
    }


class Reconciliation(OperatorView):
    @extend_schema(operation_id="operator_show_reconciliation", tags=[TAG], responses=ReconciliationSerializer)
    def get(self, request: Request) -> Response:
        """How records and receipts agree, what does not, and which months are closed."""
        found = selectors.reconciled(timezone.now())
        shown = {
            "all": found.all,
            "days": found.days,
            "organizations": [_named(rate, tenant) for rate, tenant in found.differing],
            "mismatches": [_mismatch(row) for row in selectors.mismatch_rows(found.mismatches)],
            "closes": periods.closes(),
        }
        return Response(ReconciliationSerializer(shown).data)


class ComparedCall(OperatorView):
    @extend_schema(operation_id="operator_show_call", tags=[TAG], responses=MismatchSerializer)
    def get(self, request: Request, request_id: UUID) -> Response:
        """Both accounts of one call: our record, the engine's receipt, the difference and what was done about it."""
        return Response(MismatchSerializer(_mismatch(rows.compared_call(request_id))).data)


class ReconciliationFile(OperatorView):
    @extend_schema(
        operation_id="operator_download_reconciliation",
        tags=[TAG],
        parameters=[OpenApiParameter("period", str, description="YYYY-MM; the present month if not given.")],
        responses={(200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponseBase:
        """A month's match rates as CSV: a row for each day and organization."""
        form = PeriodForm({"period": request.query_params.get("period", f"{timezone.now():%Y-%m}")})
        check_form(form)
        return rates_response(form.cleaned_data["period"])


class PeriodCloses(OperatorView):
    @extend_schema(
        operation_id="operator_close_period", tags=[TAG], request=NewCloseSerializer, responses=CloseSerializer
    )
    def post(self, request: Request) -> Response:
        """Close a month that is over; with unmatched calls under a waiver. A repeat answers with the first close."""
        form = PeriodForm(read_body(NewCloseSerializer(data=request.data)))
        check_form(form)
        closed = services.close_period(
            period=form.cleaned_data["period"], waiver=form.cleaned_data["waiver"], actor=self.person
        )
        return Response(CloseSerializer(closed).data)


class Retention(OperatorView):
    @extend_schema(operation_id="operator_show_retention", tags=[TAG], responses=RetentionSerializer)
    def get(self, request: Request) -> Response:
        """What is kept how long, which months of usage records would go, and which went."""
        shown = {
            "kept": [{"what": what, "how_long": how_long, "setting": setting} for what, how_long, setting in kept()],
            "old": selectors.old_partitions(),
            "gone": retired_months(),
        }
        return Response(RetentionSerializer(shown).data)


def _audited(request: Request) -> tuple[Any, audit.EventFilters]:
    query = read_query(ServiceAuditQuery, request)
    slug = query.pop("organization")
    return rows.organization(slug) if slug else None, audit.EventFilters(**query)


class ServiceAudit(OperatorView):
    @extend_schema(
        operation_id="operator_list_audit_events",
        tags=[TAG],
        parameters=[
            ServiceAuditQuery,
            OpenApiParameter("after", int, description="`next` of the page before."),
            OpenApiParameter("limit", int),
        ],
        responses=page_of("OperatorAudit", ServiceAuditEventSerializer),
    )
    def get(self, request: Request) -> Response:
        """Who did what in every organization and to the service; newest first."""
        organization, filters = _audited(request)

        def load(after: int | None, limit: int) -> tuple[Sequence[Any], int | None]:
            found = audit.event_page(organization, filters, after=after, limit=limit)
            return found.rows, found.next

        return page(request, load, ServiceAuditEventSerializer)


class ServiceAuditFile(OperatorView):
    @extend_schema(
        operation_id="operator_download_audit_events",
        tags=[TAG],
        parameters=[ServiceAuditQuery],
        responses={(200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponseBase:
        """The same as CSV, whole."""
        return file_response(request._request, *_audited(request))


class OperatorKeys(OperatorView):
    @lists(
        "operator_list_keys",
        OperatorKeySerializer,
        tag=TAG,
        summary="Operator keys, newest first, revoked ones included",
    )
    def get(self, request: Request) -> Response:
        return page(request, by_id(operator_keys.all_keys()), OperatorKeySerializer)


class OperatorKeyDetail(OperatorView):
    @extend_schema(operation_id="operator_revoke_key", tags=[TAG], responses={204: None})
    def delete(self, request: Request, operator_key_id: int) -> Response:
        """Revoke an operator key, at once. A repeat changes nothing."""
        operator_keys.revoke(key=rows.operator_key(operator_key_id), actor=self.person)
        return Response(status=204)

"""Limits and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.http import Http404
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import ManagementView, PageQuery, by_id, check_form, page, page_of, read_body, read_query
from api.rest.serializers.access import AuditEventSerializer, AuditQuery, ReasonField
from api.rest.views.scopes import offered, scope_value
from billing.money import to_decimal
from portal import access
from portal.audit import selectors as audit
from portal.audit.views import file_response
from portal.catalog.selectors import published_models
from portal.organizations.selectors import members_of
from portal.permissions import Permission
from portal.quotas import selectors, services
from portal.quotas.forms import CHOICES, QuotaForm
from portal.quotas.replay import replay_week
from portal.quotas.snapshot import new_limit
from portal.quotas.use import uses_of

TAG = "limits"


def _amount(quota: Any, value: int | None) -> str | None:
    if value is None:
        return None
    return f"{to_decimal(value):f}" if quota.kind == "spend" else str(value)


class LimitSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="quota.id")
    what = serializers.SerializerMethodField(help_text="Kind and window, such as `spend:month`.")
    amount = serializers.SerializerMethodField(help_text="Spend is a decimal amount, everything else a number.")
    project = serializers.SlugField(source="quota.project.slug", default=None)
    api_key_id = serializers.IntegerField(source="quota.api_key_id", allow_null=True)
    member_id = serializers.IntegerField(source="quota.member_id", allow_null=True)
    model = serializers.CharField(source="quota.model", help_text="Empty: all models.")
    mode = serializers.CharField(source="quota.mode")
    used = serializers.SerializerMethodField(help_text="null where the gateways count it.")
    resets_at = serializers.DateTimeField(allow_null=True)
    is_imposed = serializers.BooleanField(
        source="quota.is_imposed", help_text="Set by the operator of the service, from a limit template."
    )

    def get_what(self, use: Any) -> str:
        return f"{use.quota.kind}:{use.quota.window}"

    def get_amount(self, use: Any) -> str | None:
        return _amount(use.quota, use.quota.limit)

    def get_used(self, use: Any) -> str | None:
        return _amount(use.quota, use.used)


class NewLimitSerializer(serializers.Serializer[Any]):
    what = serializers.ChoiceField(list(CHOICES.items()))
    amount = serializers.CharField(max_length=30)
    scope = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        help_text="Empty for the organization; `project:SLUG`, `api_key:ID` or `member:ID`.",
    )
    model = serializers.CharField(required=False, allow_blank=True, default="", help_text="Empty: all models.")
    mode = serializers.ChoiceField(
        ["hard", "soft", "shadow"], required=False, default="hard", help_text="Refuse, alert, or only log."
    )
    reason = ReasonField()


class Limits(ManagementView):
    @extend_schema(
        operation_id="list_limits", tags=[TAG], parameters=[PageQuery], responses=page_of("Limits", LimitSerializer)
    )
    def get(self, request: Request, slug: str) -> Response:
        """Limits with what is used of each, newest first."""
        organization = access.organization_for(self.person, slug)
        quotas = by_id(selectors.quotas_of(organization))

        def load(after: int | None, limit: int) -> tuple[Sequence[Any], int | None]:
            rows, following = quotas(after, limit)
            return uses_of(organization, rows, cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT), following

        return page(request, load, LimitSerializer)

    @extend_schema(operation_id="set_limit", tags=[TAG], request=NewLimitSerializer, responses=LimitSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """Set a limit, or change the one of the same kind, window and scope. It holds from the next call on."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_LIMITS)
        quota = services.change_quota(organization=organization, actor=self.person, **_wanted(organization, request))
        assert quota is not None
        (use,) = uses_of(organization, [quota], cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT)
        return Response(LimitSerializer(use).data)


def _wanted(organization: Any, request: Request) -> dict[str, Any]:
    """The limit that the body describes, as `change_quota` takes it."""
    wanted = read_body(NewLimitSerializer(data=request.data))
    wanted["scope"] = scope_value(organization, wanted["scope"])
    form = QuotaForm(
        wanted,
        name=organization.name,
        members=members_of(organization),
        models=[model.name for model in published_models()],
        **offered(organization, wanted["scope"]),
    )
    check_form(form)
    quota: dict[str, Any] = form.cleaned_data["quota"]
    return quota


class ReplaySerializer(serializers.Serializer[Any]):
    calls = serializers.IntegerField(help_text="Of the last seven days, the newest 100,000 at most.")
    refused = serializers.IntegerField()
    since = serializers.DateTimeField(allow_null=True, help_text="Start of the first call that was looked at.")
    first_at = serializers.DateTimeField(allow_null=True, help_text="Start of the first call that had no room.")


class LimitTrial(ManagementView):
    @extend_schema(operation_id="try_limit", tags=[TAG], request=NewLimitSerializer, responses={200: ReplaySerializer})
    def post(self, request: Request, slug: str) -> Response:
        """What this limit would have refused of last week's calls. Nothing is changed."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_LIMITS)
        limit = new_limit(organization, **_wanted(organization, request))
        replay = replay_week(organization, limit, cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT)
        return Response(ReplaySerializer(replay).data)


class LimitDetail(ManagementView):
    @extend_schema(operation_id="remove_limit", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, limit_id: int) -> Response:
        """Remove a limit."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_LIMITS)
        quota = selectors.quotas_of(organization).filter(id=limit_id).first()
        if quota is None:
            raise Http404("No such limit.")
        services.remove_quota(quota=quota, actor=self.person)
        return Response(status=204)


class AuditFile(ManagementView):
    @extend_schema(
        operation_id="download_audit_events",
        tags=["audit"],
        parameters=[AuditQuery],
        responses={(200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request, slug: str) -> HttpResponseBase:
        """The same as CSV, whole."""
        organization = access.organization_for(self.person, slug, Permission.VIEW_AUDIT)
        filters = audit.EventFilters(**read_query(AuditQuery, request))
        return file_response(request._request, organization, filters)


class Audit(ManagementView):
    @extend_schema(
        operation_id="list_audit_events",
        tags=["audit"],
        parameters=[AuditQuery],
        responses=page_of("Audit", AuditEventSerializer),
    )
    def get(self, request: Request, slug: str) -> Response:
        """Who did what, when and from where; newest first."""
        organization = access.organization_for(self.person, slug, Permission.VIEW_AUDIT)
        filters = audit.EventFilters(**read_query(AuditQuery, request))

        def load(after: int | None, limit: int) -> tuple[Sequence[Any], int | None]:
            found = audit.event_page(organization, filters, after=after, limit=limit)
            return found.rows, found.next

        return page(request, load, AuditEventSerializer)

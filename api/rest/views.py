"""Management over REST, for signed-in members: keys, usage, models."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from api.rest.errors import RestErrors
from api.rest.serializers import (
    ApiKeySerializer,
    IssuedKeySerializer,
    ModelSerializer,
    UsagePageSerializer,
    UsageQuerySerializer,
)
from billing.usage.selectors import UsageFilters, usage_page
from portal import access
from portal.api_keys import selectors, services
from portal.catalog.selectors import published_models

KEYS_LIMIT = 500


class ManagementView(RestErrors, APIView):
    """Only the organization's members see that it exists."""

    authentication_classes = (SessionAuthentication,)
    permission_classes = (IsAuthenticated,)


class ApiKeys(ManagementView):
    @extend_schema(operation_id="list_keys", responses=ApiKeySerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """The newest keys of the organization, revoked ones included."""
        organization = access.organization_for(request.user, slug)
        return Response(ApiKeySerializer(selectors.client_keys(organization)[:KEYS_LIMIT], many=True).data)

    @extend_schema(operation_id="issue_key", request=ApiKeySerializer, responses={201: IssuedKeySerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Make a key. The answer holds its secret, once."""
        fields = ApiKeySerializer(data=request.data)
        fields.is_valid(raise_exception=True)
        member = access.member_for(request.user, slug)
        wanted = fields.validated_data
        project = access.project_for(request.user, slug, wanted["project"]["slug"])
        issued = services.issue(
            project=project, name=wanted["name"], actor=member.user, expires_at=wanted.get("expires_at")
        )
        answer = {**ApiKeySerializer(issued.api_key).data, "secret": issued.secret}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class ApiKeyDetail(ManagementView):
    @extend_schema(operation_id="revoke_key", responses={204: None})
    def delete(self, request: Request, slug: str, api_key_id: int) -> Response:
        """Revoke a key: the gateways refuse it within seconds. A repeat changes nothing."""
        member = access.member_for(request.user, slug)
        services.revoke(api_key=access.api_key_for(request.user, slug, api_key_id), actor=member.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Usage(ManagementView):
    @extend_schema(
        operation_id="list_usage",
        parameters=[UsageQuerySerializer, OpenApiParameter("after", description="`next` of the page before.")],
        responses=UsagePageSerializer,
    )
    def get(self, request: Request, slug: str) -> Response:
        """Usage records, newest first, a page at a time."""
        organization = access.organization_for(request.user, slug)
        query = UsageQuerySerializer(data=request.query_params)
        query.is_valid(raise_exception=True)
        wanted = dict(query.validated_data)
        after, limit = wanted.pop("after", None), wanted.pop("limit")
        try:
            page = usage_page(organization.id, filters=UsageFilters(**wanted), after=after, limit=limit)
        except ValueError as error:
            raise ValidationError({"after": [str(error)]}) from error
        return Response(UsagePageSerializer({"records": page.rows, "next": page.next}).data)


class Models(ManagementView):
    @extend_schema(operation_id="list_models", responses=ModelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The models that are offered."""
        return Response(ModelSerializer(published_models(), many=True).data)

"""Files of usage and cost: asked for, watched, downloaded."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import ManagementView, by_id, lists, page, read_body
from api.rest.serializers.purchases import ExportSerializer, NewExportSerializer
from billing.exports import selectors
from portal import access
from portal.billing_pages import services
from portal.billing_pages.export_views import export_response
from portal.organizations.selectors import projects_of

TAG = "usage and billing"


class Exports(ManagementView):
    @lists("list_exports", ExportSerializer, tag=TAG, summary="Exports, newest first")
    def get(self, request: Request, slug: str) -> Response:
        return page(
            request, by_id(selectors.exports_of(access.organization_for(self.person, slug).id)), ExportSerializer
        )

    @extend_schema(
        operation_id="request_export", tags=[TAG], request=NewExportSerializer, responses={202: ExportSerializer}
    )
    def post(self, request: Request, slug: str) -> Response:
        """Have a month's file made. Ask for the export until its `state` is `finished`, then for its `file`."""
        organization = access.organization_for(self.person, slug)
        wanted = read_body(NewExportSerializer(data=request.data))
        project = wanted["project"]
        found = next((each for each in projects_of(organization) if each.slug == project), None)
        if project and found is None:
            raise ValidationError({"project": [f"There is no project {project!r} in this organization."]})
        made = services.request_export(
            organization=organization,
            kind=wanted["kind"],
            file_format=wanted["format"],
            period=wanted["period"],
            group_by=wanted["group_by"],
            project_id=found.id if found else None,
            api_key_id=wanted["api_key_id"],
            model=wanted["model"],
            end_user=wanted["end_user"],
            actor=self.person,
        )
        return Response(ExportSerializer(made).data, status=202)


def _export(view: ManagementView, slug: str, export_id: int) -> Any:
    found = selectors.find_export(access.organization_for(view.person, slug).id, export_id)
    if found is None:
        raise Http404("No such export.")
    return found


class ExportDetail(ManagementView):
    @extend_schema(operation_id="show_export", tags=[TAG], responses=ExportSerializer)
    def get(self, request: Request, slug: str, export_id: int) -> Response:
        """How one export stands."""
        return Response(ExportSerializer(_export(self, slug, export_id)).data)


class ExportFile(ManagementView):
    @extend_schema(operation_id="download_export", tags=[TAG], responses={(200, "*/*"): OpenApiTypes.BINARY})
    def get(self, request: Request, slug: str, export_id: int) -> HttpResponseBase:
        """The file. `X-Content-SHA256` is its digest."""
        return export_response(request._request, _export(self, slug, export_id))

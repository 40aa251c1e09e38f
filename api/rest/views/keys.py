"""API keys and management keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import NO_STORE, ManagementView, by_id, lists, page, read_body
from api.rest.serializers.access import (
    ApiKeyChangeSerializer,
    ApiKeySerializer,
    IssuedKeySerializer,
    ManagementKeySerializer,
    RetiredSecretSerializer,
    RotationSerializer,
)
from portal import access
from portal.api_keys import management, selectors, services
from portal.api_keys.services import IssuedKey, KeyRules
from portal.permissions import Permission

TAG = "keys"


def _shown_once(issued: IssuedKey, status: int) -> Response:
    answer = {**ApiKeySerializer(issued.api_key).data, "secret": issued.secret}
    return Response(answer, status=status, headers=NO_STORE)


class ApiKeys(ManagementView):
    @lists("list_keys", ApiKeySerializer, tag=TAG, summary="API keys, newest first, revoked ones included")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug)
        return page(request, by_id(selectors.client_keys(organization)), ApiKeySerializer)

    @extend_schema(operation_id="issue_key", tags=[TAG], request=ApiKeySerializer, responses={201: IssuedKeySerializer})
    def post(self, request: Request, slug: str) -> Response:
        """Make an API key. The answer holds its secret, once."""
        access.member_for(self.person, slug, Permission.MANAGE_KEYS)
        wanted = read_body(ApiKeySerializer(data=request.data))
        project = access.project_for(self.person, slug, wanted["project"]["slug"], Permission.MANAGE_KEYS)
        issued = services.issue(
            project=project,
            name=wanted["name"],
            actor=self.person,
            expires_at=wanted.get("expires_at"),
            rules=_rules(wanted),
        )
        return _shown_once(issued, 201)


def _rules(wanted: dict[str, Any], before: Any = None) -> KeyRules:
    """From what was sent, and for the rest from the key as it is."""

    def allowed(what: str) -> list[str]:
        column = f"allowed_{what}"
        return list(wanted.get(column, getattr(before, column, [])))

    return KeyRules(routes=allowed("routes"), models=allowed("models"), networks=allowed("networks"))


class ApiKeyDetail(ManagementView):
    @extend_schema(operation_id="show_key", tags=[TAG], responses=ApiKeySerializer)
    def get(self, request: Request, slug: str, api_key_id: int) -> Response:
        """One API key."""
        return Response(ApiKeySerializer(access.api_key_for(self.person, slug, api_key_id)).data)

    @extend_schema(operation_id="change_key", tags=[TAG], request=ApiKeyChangeSerializer, responses=ApiKeySerializer)
    def patch(self, request: Request, slug: str, api_key_id: int) -> Response:
        """Change name, end, routes, models or networks; the gateways follow within seconds."""
        found = access.api_key_for(self.person, slug, api_key_id, Permission.MANAGE_KEYS)
        wanted = read_body(ApiKeyChangeSerializer(data=request.data, partial=True))
        changed = services.change(
            api_key=found,
            name=wanted.get("name", found.name),
            expires_at=wanted.get("expires_at", found.expires_at),
            rules=_rules(wanted, found),
            actor=self.person,
        )
        return Response(ApiKeySerializer(changed).data)

    @extend_schema(operation_id="revoke_key", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, api_key_id: int) -> Response:
        """Revoke a key: the gateways refuse it within seconds. A repeat changes nothing."""
        found = access.api_key_for(self.person, slug, api_key_id, Permission.MANAGE_KEYS)
        services.revoke(api_key=found, actor=self.person)
        return Response(status=204)


class ApiKeyRotation(ManagementView):
    @extend_schema(operation_id="rotate_key", tags=[TAG], request=RotationSerializer, responses=IssuedKeySerializer)
    def post(self, request: Request, slug: str, api_key_id: int) -> Response:
        """A new secret for the same key; its limits, budget and usage go on. The answer holds the secret, once."""
        found = access.api_key_for(self.person, slug, api_key_id, Permission.MANAGE_KEYS)
        wanted = read_body(RotationSerializer(data=request.data or {}))
        overlap = timedelta(seconds=wanted["overlap_s"])
        return _shown_once(services.rotate(api_key=found, overlap=overlap, actor=self.person), 200)


class RetiredSecrets(ManagementView):
    @extend_schema(operation_id="list_retired_secrets", tags=[TAG], responses=RetiredSecretSerializer(many=True))
    def get(self, request: Request, slug: str, api_key_id: int) -> Response:
        """Secrets that rotations replaced and that still work."""
        found = access.api_key_for(self.person, slug, api_key_id)
        rows = RetiredSecretSerializer(selectors.retired_secrets(found), many=True).data
        return Response({"data": rows, "next": None})


class RetiredSecretDetail(ManagementView):
    @extend_schema(operation_id="end_retired_secret", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, api_key_id: int, retired_id: int) -> Response:
        """End the overlap of a replaced secret now."""
        found = access.api_key_for(self.person, slug, api_key_id, Permission.MANAGE_KEYS)
        retired = next((each for each in selectors.retired_secrets(found) if each.id == retired_id), None)
        if retired is None:
            raise Http404("No such secret.")
        services.end_retired(api_key=found, retired=retired, actor=self.person)
        return Response(status=204)


class ManagementKeys(ManagementView):
    @lists("list_management_keys", ManagementKeySerializer, tag=TAG, summary="Management keys, newest first")
    def get(self, request: Request, slug: str) -> Response:
        """They are made by people, in the portal: a key that could make keys could not be taken back."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_MANAGEMENT_KEYS)
        return page(request, by_id(selectors.management_keys(organization)), ManagementKeySerializer)


class ManagementKeyDetail(ManagementView):
    @extend_schema(operation_id="revoke_management_key", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, key_id: int) -> Response:
        """Revoke a management key, at once. A repeat changes nothing."""
        member = access.member_for(self.person, slug, Permission.MANAGE_MANAGEMENT_KEYS)
        key = access.management_key_for(self.person, slug, key_id, Permission.MANAGE_MANAGEMENT_KEYS)
        access.require_grant(member, key.role)
        management.revoke(key=key, actor=self.person)
        return Response(status=204)

"""Who calls the management API: a program with a management key, or a person signed in to the portal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from api.stores import STORE_ERRORS
from portal.access import memberships_of
from portal.api_keys import management, operator_keys, secrets
from portal.api_keys.selectors import find_management_key
from portal.audit.origin import name_credential
from portal.client_address import address_of, is_inside, parse_network

logger = logging.getLogger(__name__)


class ManagementKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk-tf-admin-…` or `sk-tf-operator-…`. The user is the key's maker, confined by the key.

    What a key opens is for `portal/access.py` to say.
    """

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        kind = secrets.kind_of(secret.strip())
        if kind is secrets.Kind.API:
            raise AuthenticationFailed(
                "This is an API key: it calls models. The management API takes a management key (sk-tf-admin-…)."
            )
        name = "operator key" if kind is secrets.Kind.OPERATOR else "management key"
        key = _FINDERS[kind](secrets.digest(secret.strip())) if kind else None
        if key is None:
            raise AuthenticationFailed(f"The {name} is not valid: mistyped or revoked. See the portal.")
        now = timezone.now()
        if key.is_expired(now):
            raise AuthenticationFailed(f"The {name} expired on {key.expires_at:%Y-%m-%d %H:%M} UTC.")
        if key.allowed_networks:
            address = address_of(_plain(request))
            if not is_inside(address, [parse_network(text) for text in key.allowed_networks]):
                raise AuthenticationFailed(f"This {name} may not be used from {address or 'an unknown address'}.")
        user = key.created_by
        if kind is secrets.Kind.OPERATOR:
            user.operator_key = key
        else:
            user.management_key = key
            if not memberships_of(user).exists():
                raise AuthenticationFailed("The maker of this management key has left the organization.")
        management.mark_used(key, now)
        name_credential(f"{name} {key}")
        return user, key


# Both find a key by the digest of its secret, or None.
_FINDERS: dict[secrets.Kind, Callable[[str], Any]] = {
    secrets.Kind.MANAGEMENT: find_management_key,
    secrets.Kind.OPERATOR: operator_keys.find,
}


def _plain(request: Request) -> HttpRequest:
    plain: HttpRequest = request._request
    return plain


class ManagementThrottle(SimpleRateThrottle):
    """So many calls for each key, or for each person in a browser."""

    scope = "management"

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        user = request.user
        for kind in ("management_key", "operator_key"):
            key = getattr(user, kind, None)
            if key is not None:
                return f"throttle:management:{kind}:{key.id}"
        return f"throttle:management:user:{user.pk}"

    def allow_request(self, request: Request, view: Any) -> bool:
        try:
            return super().allow_request(request, view)
        except STORE_ERRORS as error:
            # The count is a courtesy: without Valkey the portal goes on.
            logger.warning("management_throttle_without_store error=%s", type(error).__name__)
            return True


class ManagementKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # found by its base class
    target_class = ManagementKeyAuthentication
    name = "managementKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "`sk-tf-admin-…`, or an operator's.",
        }

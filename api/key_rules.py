"""What an API key may be used for, and from where: checked for every request, before its body is understood."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings

from api.errors import ApiError
from api.http import Scope
from portal.api_keys.routes import Route
from portal.api_keys.selectors import ActiveKey
from portal.client_address import Address, client_address, is_inside

# The first segment under /v1, and what it is used for. Another one needs a key without a list of routes.
ROUTES = {
    "chat": Route.CHAT,
    "completions": Route.COMPLETIONS,
    "responses": Route.RESPONSES,
    "messages": Route.MESSAGES,
    "embeddings": Route.EMBEDDINGS,
}
# Which models there are is told to every key.
FREE = {"models"}


def client_of(scope: Scope) -> Address | None:
    peer = scope.get("client")
    forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    return client_address(peer[0] if peer else None, forwarded.decode("latin-1"), settings.TRUSTED_PROXIES)


def check_key(key: ActiveKey, scope: Scope) -> None:
    """Raises ApiError when the key may not be used from this client or for this path."""
    if key.allowed_networks:
        address = client_of(scope)
        if not is_inside(address, key.networks):
            raise ApiError(
                "permission_denied",
                f"This API key may not be used from {address or 'an unknown address'}. "
                "Its list of allowed networks is on the keys page of the portal.",
                wire_code="address_not_allowed",
            )
    if key.allowed_routes:
        segment = scope["path"].removeprefix("/v1/").partition("/")[0]
        if segment not in FREE and ROUTES.get(segment) not in key.allowed_routes:
            raise ApiError(
                "permission_denied",
                f"This API key may not be used for {scope['path']}; it is for {_listed(key.allowed_routes)}.",
                wire_code="route_not_allowed",
            )


def check_model(allowed_models: Sequence[str], model: str) -> None:
    """`model` is the public name that would serve the call."""
    if allowed_models and model not in allowed_models:
        raise ApiError(
            "permission_denied",
            f"This API key may not use the model '{model}'; it may use {_listed(allowed_models)}.",
            param="model",
            wire_code="model_not_allowed",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)

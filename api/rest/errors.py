"""Errors of the management API, in the shape of the inference paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView, exception_handler

from billing.errors import (
    BillingError,
    InvalidAccount,
    InvalidAmount,
    InvalidFee,
    InvalidPeriod,
    InvalidPrice,
    InvalidTaxRate,
)
from portal.access import TwoFactorNeeded
from portal.alerts.webhooks import WebhookRefused
from portal.api_keys.redaction import redact
from portal.errors import NameHoldsKey, PortalError
from portal.quotas.services import QuotaAboveCeiling, QuotaOutOfScope

_CODES = {
    400: "invalid_request",
    401: "not_signed_in",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_supported",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
}
# What is wrong with a body as a whole stands under no field.
_WHOLE = api_settings.NON_FIELD_ERRORS_KEY
# Wrong in what was sent; every other refusal of a service is of a state that does not allow it.
_BAD_INPUT = (
    NameHoldsKey,
    WebhookRefused,
    QuotaAboveCeiling,
    QuotaOutOfScope,
    InvalidAccount,
    InvalidAmount,
    InvalidFee,
    InvalidPeriod,
    InvalidPrice,
    InvalidTaxRate,
)


class RestErrors(APIView):
    """Answers `{"error": {message, type, param, code}}`, one message that names the first field at fault."""

    def get_exception_handler(self) -> Any:  # DRF's own return type is untyped
        return answer


def answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """The answer to an exception, or None for what is not a refusal."""
    if isinstance(error, PortalError | BillingError):
        code = status.HTTP_400_BAD_REQUEST if isinstance(error, _BAD_INPUT) else status.HTTP_409_CONFLICT
        return Response(body_of(str(error), code, error.code), status=code)
    found = exception_handler(error, context)
    if found is None:
        return None
    param: str | None = None
    if isinstance(error, exceptions.ValidationError):
        param, message = next(_faults(error.detail, ""))
    elif isinstance(error, TwoFactorNeeded):
        found.data = body_of(str(error), found.status_code, "two_factor_required")
        return found
    else:
        # Django's own 403 and 404 carry the reason that `portal/access.py` gave.
        message = (
            str(error) if not isinstance(error, exceptions.APIException) and str(error) else str(found.data["detail"])
        )
    fallback = "invalid_request" if found.status_code < 500 else "server_error"
    found.data = body_of(message, found.status_code, _CODES.get(found.status_code, fallback), param)
    return found


def body_of(message: str, status_code: int, code: str, param: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status_code < 500 else "server_error"
    named = _sendable(param) if param else None
    return {"error": {"message": _sendable(redact(message)), "type": kind, "param": named, "code": code}}


def _sendable(text: str) -> str:
    """What was sent may be repeated in a message, and JSON may hold half a surrogate pair, which UTF-8 does not."""
    return text.encode(errors="replace").decode()


def _faults(detail: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, message) of each fault in DRF's nested form."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from _faults(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _faults(inner, path)
    else:
        yield path.removesuffix(_WHOLE).removesuffix("."), str(detail)

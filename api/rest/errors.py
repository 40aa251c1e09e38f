"""Errors of the management API, in the shape of the inference paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

_CODES = {400: "invalid_request", 401: "not_signed_in", 403: "permission_denied", 404: "not_found"}


class RestErrors(APIView):
    """Answers `{"error": {message, type, param, code}}`, one message that names the first field at fault."""

    def get_exception_handler(self) -> Any:  # DRF's own return type is untyped
        return _answer


def _answer(error: Exception, context: dict[str, Any]) -> Response | None:
    answer = exception_handler(error, context)
    if answer is None:
        return None
    if isinstance(error, exceptions.ValidationError):
        param, message = next(_faults(error.detail, ""))
    else:
        param, message = None, str(answer.data["detail"])
    code = _CODES.get(answer.status_code, "invalid_request" if answer.status_code < 500 else "server_error")
    kind = "invalid_request_error" if answer.status_code < 500 else "server_error"
    answer.data = {"error": {"message": message, "type": kind, "param": param or None, "code": code}}
    return answer


def _faults(detail: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, message) of each fault in DRF's nested form."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from _faults(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _faults(inner, path)
    else:
        yield path, str(detail)

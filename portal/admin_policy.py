"""The admin's own Content Security Policy: its library needs inline styles, and scripts that evaluate expressions."""

from __future__ import annotations

from collections.abc import Callable

from csp.constants import SELF, UNSAFE_EVAL, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import HttpRequest, HttpResponseBase

PATH = "/admin/"
LOOSER = {"style-src": [SELF, UNSAFE_INLINE], "script-src": [SELF, UNSAFE_EVAL]}


class AdminPolicyMiddleware:
    """Stands behind CSPMiddleware. Every other page keeps the strict policy."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self.get_admin_response = csp_update(LOOSER)(get_response)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(PATH):
            response: HttpResponseBase = self.get_admin_response(request)
            return response
        return self.get_response(request)

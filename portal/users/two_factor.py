"""Leads people who lack a second factor to where they set one up, when an organization asks for it."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect

from portal.access import TwoFactorNeeded


class TwoFactorMiddleware:
    """Pages only: the management API answers with an error of its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, TwoFactorNeeded):
            return None
        messages.warning(request, str(exception))
        return redirect("mfa_index")

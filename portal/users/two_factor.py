"""Who has a second factor; and leads people who lack one to where they set it up, when an organization asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect

from portal.access import TwoFactorNeeded


def with_second_factor(user_ids: Iterable[int]) -> set[int]:
    """Those of these people who have one set up. Recovery codes alone are none. One query."""
    found = Authenticator.objects.filter(user_id__in=list(user_ids)).exclude(type=Authenticator.Type.RECOVERY_CODES)
    return set(found.values_list("user_id", flat=True))


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

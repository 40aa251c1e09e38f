"""What a person reads about a request that no view of ours could take."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost, RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import render
from django.utils.translation import gettext as _

from portal.lost_sessions import page_of_form
from portal.plain_text import NulInRequest

# Of a name that the client made up.
SHOWN = 100


class FormAddressMiddleware:
    """Whoever opens an address that takes only what a form sends reads that, where a browser would show nothing."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not isinstance(response, HttpResponseNotAllowed) or response.content:
            return response
        page = render(request, "405.html", status=405)
        page.headers["Allow"] = response.headers["Allow"]
        return page


def form_expired(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form without the token of this browser: signed out and in again elsewhere, or another site's."""
    return render(request, "403_csrf.html", {"page": page_of_form(request)}, status=403)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "400.html", {"reason": reason_of(request, exception)}, status=400)


def reason_of(request: HttpRequest, exception: Exception) -> str:
    """What is wrong, its limit, and what to do."""
    if isinstance(exception, DisallowedHost):
        return _(
            "This service does not answer under the name “%(name)s”. Its operator sets the name in PUBLIC_URL."
        ) % {"name": request.META.get("HTTP_HOST", "")[:SHOWN]}
    if isinstance(exception, RequestDataTooBig):
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1024
        return _("What was sent is larger than %(limit)s KiB. Send less at once.") % {"limit": limit}
    if isinstance(exception, TooManyFieldsSent):
        limit = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
        return _("What was sent has more than %(limit)s fields. Send less at once.") % {"limit": limit}
    if isinstance(exception, NulInRequest):
        return _("The field “%(name)s” holds a NUL character, which no text may hold. Take it out.") % {
            "name": exception.name[:SHOWN]
        }
    return _("Go back, reload the page and try again.")

"""What a person reads about a request that no view of ours could take."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.core.exceptions import DisallowedHost, RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.urls import is_valid_path, reverse
from django.utils.translation import gettext as _

from portal.lost_sessions import page_of_form
from portal.plain_text import NulInRequest

# Of a name that the client made up.
SHOWN = 100


class FormAddressMiddleware:
    """Whoever opens an address that takes only what a form sends is led to the form's page, which is above it.

    Such addresses stand in the bar of a browser after a form was refused; sign-in, a reload or a bookmark lead there.
    Programs have addresses of their own, and are told the method.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if (
            request.method not in {"GET", "HEAD"}
            or not isinstance(response, HttpResponseNotAllowed)
            or (request.resolver_match and "api" in request.resolver_match.app_names)
        ):
            return response
        return redirect(page_above(request.path_info))


def page_above(path: str) -> str:
    """The nearest address above that is one of ours; where that takes only forms too, its own answer leads on."""
    parts = path.strip("/").split("/")
    above = ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
    found = (f"/{each}{end}" for each in above for end in ("", "/") if is_valid_path(f"/{each}{end}"))
    return next(found, reverse("portal:front"))


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

"""What becomes of a page whose session has ended while it was open.

A form that is sent then is led to sign-in and back to the page that it stands on, never to the address that only takes
what the form sends; `static/js/kept.js` puts back there what was typed. A part that the page asks for by itself gets
401, and `static/js/parts.js` says it without taking the page away from under a form.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _


class LostSessionMiddleware:
    """Pages only: programs send no session."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if not isinstance(response, HttpResponseRedirect) or request.user.is_authenticated:
            return response
        if urlsplit(response.url).path != resolve_url(settings.LOGIN_URL):
            return response
        if "HX-Request" in request.headers:
            return HttpResponse(status=401)
        if request.method != "POST" or urlsplit(request.path).path.startswith("/accounts/"):
            return response
        messages.warning(request, _("You were signed out, so nothing was changed. What you typed is kept: sign in."))
        return redirect_to_login(page_of_form(request))


def page_of_form(request: HttpRequest) -> str:
    """The path of ours that the form was on; the first page where the browser does not say."""
    page = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(page, {request.get_host()}, require_https=request.is_secure()):
        return reverse("portal:home")
    parts = urlsplit(page)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path

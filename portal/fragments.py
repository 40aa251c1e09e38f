"""A part of a page is never where a redirect leads: the whole page is loaded again, and led there itself.

Otherwise a page that asks for its own parts would show the set-up of a second factor in the place of a table. Of a
session that ended `lost_sessions.py` tells.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase


class FragmentMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        is_fragment = "HX-Request" in request.headers and "HX-Boosted" not in request.headers
        if not is_fragment or response.status_code not in (301, 302, 303, 307, 308):
            return response
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})

"""What is answered where no view of ours does: under /api/ in the management API's shape, elsewhere as a page."""

from __future__ import annotations

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import defaults

from api.rest.errors import body_of
from portal import error_pages
from portal.home.views import not_found as not_found_page

_PREFIX = "/api/"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not request.path.startswith(_PREFIX):
        return error_pages.bad_request(request, exception)
    status = 413 if isinstance(exception, RequestDataTooBig) else 400
    return JsonResponse(body_of(error_pages.reason_of(request, exception), status, "invalid_request"), status=status)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not request.path.startswith(_PREFIX):
        return not_found_page(request, exception)
    message = "There is no such path; /api/docs lists those that there are."
    return JsonResponse(body_of(message, 404, "not_found"), status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    if not request.path.startswith(_PREFIX):
        return defaults.server_error(request)
    message = "The server failed; the operator can find it in the log."
    return JsonResponse(body_of(message, 500, "server_error"), status=500)

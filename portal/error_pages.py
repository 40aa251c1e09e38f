"""What a person reads about a request that no view of ours could read."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import DisallowedHost, RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from portal.plain_text import NulInRequest

# Of a name that the client made up.
SHOWN = 100


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

"""Times are printed in the reader's zone, which their browser states in a cookie."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

COOKIE = "time_zone"
# Found by a walk through the files of all zones: once, not at every request.
TIME_ZONES = frozenset(available_timezones())


class ReaderTimeZoneMiddleware:
    """Without a cookie, or with one that names no zone, times are UTC."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        name = unquote(request.COOKIES.get(COOKIE, ""))
        if name not in TIME_ZONES:
            return self.get_response(request)
        with timezone.override(ZoneInfo(name)):
            return self.get_response(request)

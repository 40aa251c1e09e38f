"""No text of a request holds a NUL character: PostgreSQL keeps none, and fails where one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict


class NulInRequest(BadRequest):
    def __init__(self, name: str) -> None:
        super().__init__(f"NUL in {name!r}")
        self.name = name


class PlainTextMiddleware:
    """Names and fields of an address, fields of a form; JSON is read by serializers, which refuse it by themselves."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        """After the CSRF check, which has read the form."""
        if any("\0" in text for text in kwargs.values() if isinstance(text, str)):
            raise Http404
        refuse_nul(request.GET)
        refuse_nul(request.POST)


def refuse_nul(fields: QueryDict) -> None:
    for name, values in fields.lists():
        if any("\0" in text for text in (name, *values)):
            raise NulInRequest(name.replace("\0", ""))

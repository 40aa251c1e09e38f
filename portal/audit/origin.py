"""Where the act under way comes from, for the audit log: set for one request, read when an event is written.

It travels in a context variable, because every service writes events and none should have to carry an address along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase

from portal.client_address import text_of


@dataclass(frozen=True, slots=True)
class Origin:
    """`credential` names the management key that was used; empty for a browser's session."""

    address: str | None = None
    user_agent: str = ""
    credential: str = ""


NOWHERE = Origin()
_origin: ContextVar[Origin] = ContextVar("origin", default=NOWHERE)


def current() -> Origin:
    return _origin.get()


@contextmanager
def acting_from(origin: Origin) -> Iterator[None]:
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def of_request(request: HttpRequest, credential: str = "") -> Origin:
    return Origin(text_of(request), request.META.get("HTTP_USER_AGENT", "")[:200], credential)


def name_credential(credential: str) -> None:
    """The request under way turned out to be made with this key."""
    origin = current()
    _origin.set(Origin(origin.address, origin.user_agent, credential[:140]))


class OriginMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with acting_from(of_request(request)):
            return self.get_response(request)

"""The signed-in user of a request, typed."""

from __future__ import annotations

from django.http import HttpRequest

from portal.users.models import User


def signed_in(request: HttpRequest) -> User:
    """For views behind `login_required`."""
    assert isinstance(request.user, User)
    return request.user

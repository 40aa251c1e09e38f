"""What a person reads who acts on a row that is not there any more: a colleague, or another tab, removed it meanwhile.

Not a page that says 404, but the list on which it was. Programs get their 404 from api/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from portal import access

View = Callable[..., HttpResponse]


def told_when_gone(page: str, text: Any) -> Callable[[View], View]:
    """Of a view that takes what a form on the organization's page of this name sends: `text` is read there, a lazy
    translation (of a type that is there for checkers only).

    Rows of others and rows that never were are told the same. Whoever may not act is refused first, as ever.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def told(request: HttpRequest, slug: str, **which: int) -> HttpResponse:
            try:
                return view(request, slug, **which)
            except access.RowGone:
                messages.warning(request, text)
                return redirect(f"portal:{page}", slug)

        return told

    return decorate

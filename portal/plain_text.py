"""What texts may not hold. None of a request a NUL character: PostgreSQL keeps none, and fails where one is asked for.
No name and no reason an invisible one: it would look like another, or turn around what stands beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

from django.core.exceptions import BadRequest, ValidationError
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.utils.translation import gettext_lazy as _

# Controls, marks of format such as those of the direction of writing, and separators of lines.
INVISIBLE = {"Cc", "Cf", "Zl", "Zp"}
# Letters that are drawn as nothing: fillers of Hangul, and the empty Braille pattern.
BLANK = "\u115f\u1160\u2800\u3164\uffa0"
# Persian and Indic words are written with these two, and composed emoji.
JOINERS = "\u200c\u200d"


def refuse_invisible(name: str) -> None:
    """A validator of forms and serializers."""
    for place, character in enumerate(name, start=1):
        if is_invisible(character):
            raise ValidationError(
                _("Character %(place)s is invisible (U+%(code)s). Take it out: only what one can see is kept."),
                code="invisible_character",
                params={"place": place, "code": f"{ord(character):04X}"},
            )


def without_invisible(name: str) -> str:
    """A name that nobody typed here, whose reader cannot be asked to take it out. What parts its words is a space."""
    visible = (" " if each.isspace() else each for each in name if each.isspace() or not is_invisible(each))
    return " ".join("".join(visible).split())


def is_invisible(character: str) -> bool:
    return character not in JOINERS and (character in BLANK or unicodedata.category(character) in INVISIBLE)


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

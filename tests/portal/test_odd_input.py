"""Every form, filter and field of the product, filled with what nobody should send: refused or read, never broken.

The test client raises what a view raises, so that a 500 shows its traceback here. What a form is made of is read from
the pages themselves: a new one is tried by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from tests.portal.test_access import (
    API_PATHS,
    MEMBER_PAGES,
    OPERATOR_CALLS,
    OPERATOR_PAGES,
    OPERATOR_PATHS,
    OPERATOR_POST_ONLY,
    PAGES,
    REST_CALLS,
    address_of,
)
from tests.portal.world import World, make_world

pytestmark = pytest.mark.django_db

MARKUP = "<script>alert(1)</script>"
ODD = {
    "a long number": "9" * 400,
    "an infinite number": "1e999",
    "no number": "NaN",
    "a german amount": "-1.234,56",
    "a time that a clock change leaves out": "2026-03-29T02:30",
    "the last day there is": "9999-12-31",
    "a long text": "\U0001f4a5\u202e' OR 1=1 --{{7*7}}%s" * 900,
    "markup": MARKUP,
}
# What lists and charts are asked with, in the address.
FILTERS = [
    *("after", "before", "days", "end", "end_user", "format", "group", "group_by", "key", "limit", "metric", "model"),
    *(
        "organization",
        "page",
        "period",
        "q",
        "range",
        "request_id",
        "split",
        "start",
        "state",
        "status",
        "step",
        "text",
    ),
]


class Forms(HTMLParser):
    """(method, action, {field: value}) of each form of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str, dict[str, str]]] = []
        self._fields: dict[str, str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._fields = {}
            self.found.append((given.get("method", "get").lower(), given.get("action", ""), self._fields))
        elif tag in ("input", "select", "textarea") and self._fields is not None and given.get("name"):
            self._fields[given["name"]] = given.get("value", "")
        elif tag == "option" and self._fields and "selected" in given:
            self._fields[list(self._fields)[-1]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._fields = None


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch, transaction.atomic():
        yield make_world(patch)
        transaction.set_rollback(True)


def send(client: Client, method: str, address: str, data: Any, **options: Any) -> HttpResponse:
    """What the call changed is taken back, a sign-out included."""
    cookies = client.cookies.copy()
    with transaction.atomic():
        answer: HttpResponse = getattr(client, method)(address, data, **options)
        transaction.set_rollback(True)
    client.cookies = cookies
    return answer


def check(answer: HttpResponse, what: str) -> None:
    assert answer.status_code < 500, what
    if not answer.streaming and "html" in answer.headers.get("content-type", ""):
        assert MARKUP not in answer.content.decode(errors="replace"), f"{what}: echoed as markup"


def mixed(names: Sequence[str], rounds: int) -> Iterator[dict[str, str]]:
    """Each field with another odd value, in each round with the next."""
    values = list(ODD.values())
    for turn in range(rounds):
        yield {name: values[(place + turn) % len(values)] for place, name in enumerate(names)}


MEMBERS = [name for name in MEMBER_PAGES if PAGES.get(name, ("", None))[0] is not None]
OPERATORS = [name for name in OPERATOR_PAGES if name not in OPERATOR_POST_ONLY]


@pytest.mark.parametrize(("who", "name"), [("owner", name) for name in MEMBERS] + [("operator", n) for n in OPERATORS])
def test_forms_and_filters_of_a_page(who: str, name: str, world: World) -> None:
    client = world.browser(who)
    if who == "owner":
        address = address_of(MEMBER_PAGES[name], world.arguments, "portal")
    else:
        fields = OPERATOR_PAGES[name].pattern.converters
        address = reverse(f"portal:{name}", kwargs={field: world.arguments[field] for field in fields})
    page = send(client, "get", address, {})
    for filters in mixed(FILTERS, 2):
        check(send(client, "get", address, filters), f"{address} asked for {filters}")
    if "html" not in page.headers["content-type"]:
        return
    for method, action, fields in Forms(page.content.decode()).found:
        for odd in mixed([each for each in fields if each != "csrfmiddlewaretoken"], 2):
            check(send(client, method, action or address, {**fields, **odd}), f"{method} {action or address}: {odd}")


BODIES: tuple[Any, ...] = (ODD["the last day there is"], 10**30, [{"a": [None]}], "\ud800")


@pytest.mark.parametrize(("name", "method"), [*REST_CALLS, *OPERATOR_CALLS])
def test_fields_of_the_management_api(name: str, method: str, world: World) -> None:
    is_operators = name in OPERATOR_PATHS and (name, method) in OPERATOR_CALLS
    client = world.browser("operator" if is_operators else "owner")
    if is_operators:
        fields = OPERATOR_PATHS[name].pattern.converters
        address = reverse(f"api:{name}", kwargs={field: world.arguments[field] for field in fields})
    else:
        address = address_of(API_PATHS[name], world.arguments, "api")
    method = method.lower()
    if method == "get":
        for filters in mixed(FILTERS, 2):
            assert send(client, "get", address, filters).status_code < 500, f"{address} asked for {filters}"
        return
    known = known_fields(client, method, address)
    for value in BODIES:
        for body in [dict.fromkeys(known, value)] if known else [value]:
            answer = send(client, method, address, json.dumps(body), content_type="application/json")
            assert answer.status_code < 500, f"{method} {address}: {value!r}"
            if answer.status_code == 400:
                error = answer.json()["error"]
                assert error["message"]
                assert error["param"] != "non_field_errors"


def known_fields(client: Client, method: str, address: str) -> list[str]:
    """As the refusal of an unknown one names them."""
    answer = send(client, method, address, {"no such field": 1}, content_type="application/json")
    _, _, known = answer.json()["error"]["message"].partition("known are ") if answer.status_code == 400 else ("",) * 3
    return known.rstrip(".").split(", ") if known else []

"""Whoever adds a list or a chart measures it on a large database, or says in `benchmarks/pages/pages.py` why not."""

from __future__ import annotations

import pytest
from django.urls import resolve

from benchmarks.pages.pages import NOT_MEASURED, PAGES
from tests.portal.test_access import MEMBER_PAGES, OPERATOR_PAGES, OPERATOR_POST_ONLY, OPERATOR_REST, REST
from tests.portal.test_access import PAGES as METHODS

NAMES = {
    **{"slug": "seed-00001", "period": "2026-10", "request": "01900000-0000-7000-8000-000000000000", "after": "x"},
    **{"model_name": "seed-small", "end_user": "user-1"},
    **dict.fromkeys(("key", "project", "invoice", "run", "template", "delivery", "model", "since", "until"), 1),
}
MEASURED = {resolve(page.path.format(**NAMES).partition("?")[0].partition("#")[0]).view_name for page in PAGES}
EXCUSED = {name for names in NOT_MEASURED.values() for name in names}


def answering_get() -> set[str]:
    """Every address of organizations and operators, and of the management API, that answers GET."""
    pages = {name for name in MEMBER_PAGES if METHODS[name][0]} | (set(OPERATOR_PAGES) - OPERATOR_POST_ONLY)
    paths = {name for name, methods in REST.items() if "get" in methods}
    paths |= {name for name, methods in OPERATOR_REST.items() if "get" in methods.lower().split()}
    return {f"portal:{name}" for name in pages} | {f"api:{name}" for name in paths}


def test_every_page_is_measured_or_excused() -> None:
    assert sorted(answering_get() - MEASURED - EXCUSED) == []


def test_nothing_measured_is_excused_and_every_excuse_is_of_a_page() -> None:
    assert sorted(MEASURED & EXCUSED) == []
    assert sorted(EXCUSED - answering_get()) == []
    everyones = {"api:models", "api:organizations"}
    assert sorted(MEASURED - answering_get() - everyones) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_operators_pages_are_asked_by_an_operator(page) -> None:
    assert page.is_operator == ("/operator/" in page.path)

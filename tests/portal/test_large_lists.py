"""Somebody's many API keys slow nobody else's page, and their own list is read from an index, a page at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.api_keys.models import ApiKey
from portal.api_keys.services import issue
from portal.organizations.models import Project
from tests.factories.portal import Cast

KEYS = 30_000


@pytest.fixture
def many(cast: Cast) -> None:
    """30,000 keys of Cyd's organization; Ada's has one."""
    project = Project.objects.get(organization__members__user=cast.cyd)
    issue(project=project, name="key", actor=cast.cyd)
    issue(project=cast.project, name="laptop", actor=cast.ada)
    made = {
        "id": "nextval(pg_get_serial_sequence('portal_apikey', 'id'))",
        "name": "'key ' || n",
        "digest": "md5(n::text)",
    }
    columns = [field.column for field in ApiKey._meta.concrete_fields]
    values = ", ".join(made.get(column, column) for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO portal_apikey ({', '.join(columns)}) SELECT {values}"  # noqa: S608
            f" FROM portal_apikey, generate_series(1, {KEYS}) n WHERE organization_id = {project.organization_id}"
        )
        cursor.execute("ANALYZE portal_apikey")


def plans_of(browser: Client, slug: str, **query: str) -> dict[str, str]:
    """How PostgreSQL finds keys for the page: its queries and their plans."""
    with CaptureQueriesContext(connection) as asked:
        assert browser.get(reverse("portal:api_keys", args=[slug]), query).status_code == 200
    about_keys = [each["sql"] for each in asked.captured_queries if 'FROM "portal_apikey"' in each["sql"]]
    with connection.cursor() as cursor:
        plans = {}
        for sql in about_keys:
            cursor.execute(f"EXPLAIN {sql}")
            plans[sql] = "\n".join(line for (line,) in cursor.fetchall())
    assert plans
    return plans


@pytest.mark.parametrize("query", [{}, {"q": "lap"}])
@pytest.mark.usefixtures("many")
def test_keys_of_others_are_not_looked_at(query: dict[str, str], cast: Cast, signed_in: Callable[..., Client]) -> None:
    for sql, plan in plans_of(signed_in(cast.ada), cast.organization.slug, **query).items():
        assert "Seq Scan on portal_apikey" not in plan, f"{sql}\n{plan}"


@pytest.mark.usefixtures("many")
def test_a_page_of_many_keys_is_read_from_an_index(cast: Cast, signed_in: Callable[..., Client]) -> None:
    slug = Project.objects.get(organization__members__user=cast.cyd).organization.slug
    plans = plans_of(signed_in(cast.cyd), slug, page="3")
    pages = {sql: plan for sql, plan in plans.items() if "LIMIT" in sql and "OFFSET" in sql}
    assert pages
    for sql, plan in pages.items():
        assert "Seq Scan on portal_apikey" not in plan, f"{sql}\n{plan}"
        assert "Sort" not in plan, f"{sql}\n{plan}"

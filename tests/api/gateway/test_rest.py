"""Management over REST: keys and usage of the organizations that one is a member of."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.api_keys.secrets import digest
from portal.api_keys.selectors import find_active
from portal.api_keys.services import issue
from tests.factories.portal import Cast, make_cast, make_model
from tests.factories.usage import use_for_days

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return make_cast()


def signed_in(user: Any) -> Client:
    client = Client(enforce_csrf_checks=False)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_a_key_is_issued_listed_and_revoked(cast: Cast) -> None:
    client = signed_in(cast.ben)
    url = f"/api/organizations/{cast.organization.slug}/keys"
    body = {"name": "laptop", "project": cast.project.slug}
    made = client.post(url, body, content_type="application/json")
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert find_active(digest(secret)) is not None

    (listed,) = client.get(url).json()["data"]
    assert listed["name"] == "laptop"
    assert "secret" not in listed

    assert client.delete(f"{url}/{listed['id']}").status_code == 204
    assert find_active(digest(secret)) is None


def test_an_outsider_gets_404(cast: Cast) -> None:
    client = signed_in(cast.cyd)
    for path in ("keys", "usage"):
        answer = client.get(f"/api/organizations/{cast.organization.slug}/{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
    assert Client().get(f"/api/organizations/{cast.organization.slug}/keys").status_code == 401


def test_a_wrong_field_is_named(cast: Cast) -> None:
    client = signed_in(cast.ada)
    answer = client.post(
        f"/api/organizations/{cast.organization.slug}/keys", {"project": "x"}, content_type="application/json"
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"


def test_usage_comes_in_pages(cast: Cast) -> None:
    model = make_model()
    key = issue(project=cast.project, name="k", actor=cast.ada).api_key
    use_for_days([key], model.name, now=timezone.now(), days=1, calls_per_day=9)
    client = signed_in(cast.ada)
    url = f"/api/organizations/{cast.organization.slug}/usage"
    seen: list[str] = []
    after: str | None = None
    while True:
        page = client.get(url, {"limit": 2, **({"after": after} if after else {})}).json()
        seen += [record["request_id"] for record in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert len(seen) == len(set(seen)) >= 5
    assert client.get(url, {"after": "nonsense"}).json()["error"]["param"] == "after"


def test_the_document_describes_both_halves(cast: Cast) -> None:
    document = Client().get("/v1/openapi.json").json()
    assert "/v1/chat/completions" in document["paths"]
    assert "/api/models" in document["paths"]
    reference = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    name = reference["$ref"].rpartition("/")[2]
    assert "messages" in document["components"]["schemas"][name]["properties"]

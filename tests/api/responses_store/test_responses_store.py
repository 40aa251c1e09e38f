"""Kept responses: continued, listed, isolated between projects, deleted and forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from api.responses_store import selectors, services
from api.responses_store.errors import ItemNotFound, PreviousResponseNotFound, ResponseNotFound
from api.responses_store.models import StoredItem, StoredResponse
from api.tasks import forget_kept_answers
from portal.organizations.models import Organization, Project

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
RETENTION = timedelta(days=30)


@pytest.fixture
def project() -> Project:
    return Project.objects.create(
        organization=Organization.objects.create(name="Ada", slug="ada", keeps_responses=True),
        name="Default",
        slug="default",
    )


@pytest.fixture
def other_project(project: Project) -> Project:
    return Project.objects.create(organization=project.organization, name="Other", slug="other")


def message(item_id: str, text: str, role: str = "user") -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def save(project: Project, name: str, previous: str | None = None, now: datetime = NOW) -> StoredResponse:
    response = {
        "id": name,
        "output": [message(f"{name}_out", f"answer of {name} \0", "assistant")],
    }
    inputs = [message(f"{name}_in{index}", f"question {index} of {name}") for index in range(2)]
    return services.save_response(
        project_id=project.id,
        response=response,
        previous_response_id=previous,
        input_items=inputs,
        now=now,
        retention=RETENTION,
    )


def ids(items: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in items]


def test_response_is_read_back_byte_for_byte(project: Project) -> None:
    save(project, "resp_1")
    assert orjson.loads(selectors.find_response(project.id, "resp_1", NOW))["output"][0]["content"][0]["text"].endswith(
        "\0"
    )


def test_history_holds_inputs_and_outputs_of_the_whole_chain_in_two_queries(project: Project) -> None:
    save(project, "resp_1")
    save(project, "resp_2", "resp_1")
    save(project, "resp_3", "resp_2")
    with CaptureQueriesContext(connection) as queries:
        history = selectors.history(project.id, "resp_2", NOW)
    assert ids([orjson.loads(item) for item in history]) == [
        "resp_1_in0",
        "resp_1_in1",
        "resp_1_out",
        "resp_2_in0",
        "resp_2_in1",
        "resp_2_out",
    ]
    assert len(queries) == 2


def test_repeated_save_changes_nothing(project: Project) -> None:
    save(project, "resp_1")
    save(project, "resp_1")
    assert StoredItem.objects.count() == 3


def test_another_project_finds_nothing(project: Project, other_project: Project) -> None:
    save(project, "resp_1")
    with pytest.raises(ResponseNotFound):
        selectors.find_response(other_project.id, "resp_1", NOW)
    with pytest.raises(PreviousResponseNotFound):
        selectors.history(other_project.id, "resp_1", NOW)
    with pytest.raises(ResponseNotFound):
        services.delete_response(project_id=other_project.id, response_id="resp_1")
    assert selectors.find_items(other_project.id, ["resp_1_in0"], NOW) == {}
    assert selectors.find_items(project.id, ["resp_1_in0"], NOW).keys() == {"resp_1_in0"}


def test_name_with_nul_is_not_found(project: Project) -> None:
    save(project, "resp_1")
    for look_up in (selectors.find_response, selectors.history, selectors.input_items):
        with pytest.raises(ResponseNotFound):
            look_up(project.id, "resp_1\0", NOW)
    with pytest.raises(ResponseNotFound):
        services.delete_response(project_id=project.id, response_id="\0")
    with pytest.raises(ItemNotFound):
        selectors.input_items(project.id, "resp_1", NOW, after="\0")
    assert selectors.find_items(project.id, ["\0"], NOW) == {}


def test_chain_with_a_deleted_link_is_not_continued(project: Project) -> None:
    save(project, "resp_1")
    save(project, "resp_2", "resp_1")
    services.delete_response(project_id=project.id, response_id="resp_1")
    assert selectors.find_response(project.id, "resp_2", NOW)
    with pytest.raises(PreviousResponseNotFound) as missing:
        selectors.history(project.id, "resp_2", NOW)
    assert missing.value.response_id == "resp_1"


def test_continuing_keeps_the_whole_chain(project: Project) -> None:
    later = NOW + timedelta(days=20)
    save(project, "resp_1")
    save(project, "resp_2", "resp_1", now=later)
    assert StoredResponse.objects.get(response_id="resp_1").expires_at == later + RETENTION


def test_expired_responses_are_not_found_and_then_purged(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PURGE_BATCH", 2)
    for index in range(5):
        save(project, f"resp_{index}")
    save(project, "resp_new", now=NOW + timedelta(days=1))
    end = NOW + RETENTION
    with pytest.raises(ResponseNotFound):
        selectors.find_response(project.id, "resp_0", end)
    assert services.purge_expired(now=end) == 5
    assert list(StoredResponse.objects.values_list("response_id", flat=True)) == ["resp_new"]
    assert StoredItem.objects.count() == 3


def test_hourly_task_forgets_what_is_over_its_time(project: Project) -> None:
    save(project, "resp_old", now=timezone.now() - RETENTION - timedelta(hours=1))
    save(project, "resp_new", now=timezone.now())
    forget_kept_answers()
    assert list(StoredResponse.objects.values_list("response_id", flat=True)) == ["resp_new"]


def test_input_items_page_both_ways(project: Project) -> None:
    save(project, "resp_1")
    newest = selectors.input_items(project.id, "resp_1", NOW, limit=1)
    assert (newest.first_id, newest.last_id, newest.has_more) == ("resp_1_in1", "resp_1_in1", True)
    rest = selectors.input_items(project.id, "resp_1", NOW, limit=1, after="resp_1_in1")
    assert (rest.first_id, rest.has_more) == ("resp_1_in0", False)
    ascending = selectors.input_items(project.id, "resp_1", NOW, order="asc", after="resp_1_in0")
    assert ids([orjson.loads(item) for item in ascending.items]) == ["resp_1_in1"]
    with pytest.raises(ItemNotFound):
        selectors.input_items(project.id, "resp_1", NOW, after="nowhere")

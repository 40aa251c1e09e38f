"""One key, one run: the repeat gets the first answer, another body a refusal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from api.idempotency import services
from api.idempotency.errors import AnswerNotKept, CallInProgress, KeyReused
from api.idempotency.models import IdempotentCall
from api.idempotency.services import KeptAnswer
from portal.organizations.models import Organization, Project

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
BODY = services.digest("/v1/responses", b"{}")


@pytest.fixture
def project_id() -> int:
    organization = Organization.objects.create(name="Ada", slug="ada")
    return int(Project.objects.create(organization=organization, name="Default", slug="default").id)


def claim(project_id: int, *, digest: str = BODY, now: datetime = NOW) -> tuple[UUID, KeptAnswer | None]:
    request_id = uuid4()
    answer = services.claim(project_id=project_id, key="k", digest=digest, request_id=request_id, now=now)
    return request_id, answer


def finish(project_id: int, request_id: UUID, body: bytes = b"answer") -> None:
    services.finish(
        project_id=project_id, key="k", request_id=request_id, status=200, content_type="application/json", body=body
    )


def test_repeat_gets_the_first_answer(project_id: int) -> None:
    first, answer = claim(project_id)
    assert answer is None
    finish(project_id, first)
    assert claim(project_id)[1] == KeptAnswer(200, "application/json", b"answer")


def test_repeat_while_the_first_runs_is_told_to_wait(project_id: int) -> None:
    claim(project_id)
    with pytest.raises(CallInProgress):
        claim(project_id)


def test_another_body_is_refused(project_id: int) -> None:
    first, _ = claim(project_id)
    finish(project_id, first)
    with pytest.raises(KeyReused):
        claim(project_id, digest=services.digest("/v1/responses", b"{ }"))
    with pytest.raises(KeyReused):
        claim(project_id, digest=services.digest("/v1/messages", b"{}"))


def test_failed_call_gives_its_key_back(project_id: int) -> None:
    first, _ = claim(project_id)
    services.release(project_id=project_id, key="k", request_id=first)
    assert claim(project_id)[1] is None


def test_call_that_lost_its_key_changes_nothing(project_id: int) -> None:
    first, _ = claim(project_id)
    _, answer = claim(project_id, now=NOW + services.RUNNING_LIMIT + timedelta(seconds=1))
    assert answer is None
    finish(project_id, first)
    services.release(project_id=project_id, key="k", request_id=first)
    assert IdempotentCall.objects.get().status is None


def test_keys_belong_to_a_project(project_id: int) -> None:
    first, _ = claim(project_id)
    finish(project_id, first)
    organization = Organization.objects.create(name="Cyd", slug="cyd")
    other = Project.objects.create(organization=organization, name="Default", slug="default")
    assert claim(other.id)[1] is None


def test_answer_that_is_too_long_is_not_run_twice(project_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "ANSWER_LIMIT_BYTES", 3)
    first, _ = claim(project_id)
    finish(project_id, first)
    with pytest.raises(AnswerNotKept):
        claim(project_id)


def test_keys_are_forgotten_after_a_day(project_id: int) -> None:
    first, _ = claim(project_id)
    finish(project_id, first)
    later = NOW + services.KEEP_FOR + timedelta(seconds=1)
    assert services.purge_expired(now=later) == 1
    assert claim(project_id, now=later)[1] is None

"""Responses with OpenAI's own client: kept, continued, listed, deleted, and never shown to another project."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from django.utils import timezone

from api.responses_store.models import StoredResponse
from api.responses_store.services import purge_expired
from portal.organizations.services import set_responses_kept
from tests.api.live.service import MODEL, Account, Web, at_some_pace, eventually, keep_responses, make_account

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Add two integers",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
    "strict": False,
}


@pytest.fixture
def account(account: Account) -> Account:
    return keep_responses(account)


@pytest.fixture
def each_account(each_account: Account) -> Account:
    return keep_responses(each_account)


def test_stream_has_every_event_and_is_recorded(each_account: Account) -> None:
    client = each_account.client(_strict_response_validation=True)
    events = list(client.responses.create(model=MODEL, input="THINK: hm SAY: one two", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    response = events[-1].response
    assert response.output_text == "one two"
    assert [item.type for item in response.output] == ["reasoning", "message"]

    record = each_account.record()
    assert response.id == f"resp_{record.request_id.hex}"
    assert (record.protocol, record.status) == ("responses", "completed")
    assert response.usage is not None
    assert response.usage.output_tokens == record.completion_tokens
    assert response.usage.output_tokens_details.reasoning_tokens == record.reasoning_tokens == 1
    each_account.assert_books_agree()


def test_kept_response_is_read_listed_and_deleted(account: Account) -> None:
    client = account.client(_strict_response_validation=True)
    made = client.responses.create(model=MODEL, input="SAY: hello", metadata={"a": "b"})
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    (item,) = client.responses.input_items.list(made.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "SAY: hello"}]
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(made.id)


def test_kept_response_is_told_again_as_a_stream(account: Account) -> None:
    client = account.client(_strict_response_validation=True)
    made = client.responses.create(model=MODEL, input="SAY: hello there")
    told = list(client.responses.retrieve(made.id, stream=True))
    assert told[-1].response.to_dict() == made.to_dict()
    rest = list(client.responses.retrieve(made.id, stream=True, starting_after=told[3].sequence_number))
    assert [event.sequence_number for event in rest] == [event.sequence_number for event in told[4:]]


def test_nothing_is_kept_unless_the_organization_says_so(web: Web) -> None:
    account = make_account(web)
    client = account.client(_strict_response_validation=True)
    made = client.responses.create(model=MODEL, input="SAY: x")
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="not kept here") as refused:
        client.responses.create(model=MODEL, input="SAY: y", previous_response_id=made.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError, match="Leave `store` out") as refused_store:
        client.responses.create(model=MODEL, input="SAY: y", store=True)
    assert refused_store.value.param == "store"
    assert not StoredResponse.objects.filter(project=account.project).exists()

    def is_kept() -> bool:
        return client.responses.create(model=MODEL, input="SAY: z").to_dict()["store"] is True

    # A gateway that knows the key already hears of it within moments.
    keep_responses(account)
    eventually(is_kept)
    kept = client.responses.create(model=MODEL, input="SAY: z", store=True)
    assert client.responses.create(model=MODEL, input="SAY: y", previous_response_id=kept.id).output_text == "y"
    set_responses_kept(organization=account.organization, are_kept=False, actor=account.api_key.created_by)
    eventually(lambda: not is_kept())
    with pytest.raises(openai.NotFoundError, match="not kept here"):
        client.responses.create(model=MODEL, input="SAY: y", previous_response_id=kept.id)
    assert purge_expired(now=timezone.now()) >= 3
    assert not StoredResponse.objects.filter(project=account.project).exists()


def test_unstored_response_is_not_found(account: Account) -> None:
    client = account.client()
    made = client.responses.create(model=MODEL, input="SAY: x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_conversation_goes_on_with_calls_and_outputs(account: Account) -> None:
    client = account.client()
    first = client.responses.create(model=MODEL, input="Add 2 and 3.", tools=[TOOL], tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"a": 2, "b": 3}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "The sum is five."}
    second = client.responses.create(model=MODEL, input=[output], previous_response_id=first.id, tools=[TOOL])
    assert "The sum is five." in second.output_text
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    third = client.responses.create(model=MODEL, input="SAY: bye", previous_response_id=second.id)
    counted = client.responses.input_tokens.count(model=MODEL, input="SAY: bye", previous_response_id=second.id)
    assert third.usage is not None
    assert counted.input_tokens == third.usage.input_tokens


def test_items_are_named_instead_of_repeated(account: Account) -> None:
    client = account.client()
    first = client.responses.create(model=MODEL, input="SAY: hello")
    items: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "SAY: again"},
    ]
    assert client.responses.create(model=MODEL, input=items).output_text == "again"
    with pytest.raises(openai.BadRequestError, match="msg_nowhere"):
        client.responses.create(model=MODEL, input=[{"type": "item_reference", "id": "msg_nowhere"}])


def test_another_project_finds_nothing(account: Account) -> None:
    made = account.client().responses.create(model=MODEL, input="SAY: secret")
    outsider = make_account(account.web).client()
    with pytest.raises(openai.NotFoundError):
        outsider.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as refusal:
        outsider.responses.create(model=MODEL, input="x", previous_response_id=made.id)
    assert (refusal.value.code, refusal.value.param) == ("previous_response_not_found", "previous_response_id")


def test_output_without_its_call_is_refused(account: Account) -> None:
    client = account.client()
    made = client.responses.create(model=MODEL, input="SAY: x")
    output: Any = {"type": "function_call_output", "call_id": "call_9", "output": "x"}
    with pytest.raises(openai.BadRequestError, match="call_9"):
        client.responses.create(model=MODEL, input=[output], previous_response_id=made.id)
    account.assert_books_agree()


def test_cancelling_and_odd_methods_are_refused_clearly(account: Account) -> None:
    client = account.client()
    made = client.responses.create(model=MODEL, input="SAY: x")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    answer = account.http.put(f"/v1/responses/{made.id}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, DELETE, OPTIONS")
    for query in ("limit=0", "limit=x", "order=up"):
        assert account.http.get(f"/v1/responses/{made.id}/input_items?{query}").status_code == 400


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [("background", True, "'stream'"), ("conversation", "conv_1", "previous_response_id"), ("prompt", {"id": "p"}, "")],
)
def test_what_is_not_done_is_refused_by_name(account: Account, field: str, value: Any, hint: str) -> None:
    answer = account.http.post("/v1/responses", json={"model": MODEL, "input": "hi", field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert hint in error["message"]
    assert not account.records()


def test_counted_tokens_are_those_of_the_call(account: Account) -> None:
    client = account.client()
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
    first = client.responses.create(model=MODEL, input="SAY: one", instructions="Be brief", tools=[tool])
    counted = client.responses.input_tokens.count(model=MODEL, input="SAY: one", instructions="Be brief", tools=[tool])
    assert first.usage is not None
    assert counted.input_tokens == first.usage.input_tokens
    more = {"model": MODEL, "input": "SAY: two", "previous_response_id": first.id}
    second = client.responses.create(**more)
    assert second.usage is not None
    alone = client.responses.input_tokens.count(model=MODEL, input="SAY: two")
    assert client.responses.input_tokens.count(**more).input_tokens == second.usage.input_tokens > alone.input_tokens
    assert len(account.records()) == 2


def test_engine_that_dies_midway_ends_the_stream_as_failed(account: Account) -> None:
    def attempt(pace: float) -> list[Any] | None:
        caller = make_account(account.web)
        try:
            events = list(caller.client().responses.create(model=MODEL, input=f"PACE:{pace} FAIL:500@3", stream=True))
        except openai.InternalServerError:
            events = None  # nothing had been sent yet
        assert caller.record().status == "failed"
        caller.assert_books_agree()
        return events

    events = at_some_pace(attempt)
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None


def test_limit_ends_incomplete(account: Account) -> None:
    made = account.client().responses.create(model=MODEL, input="TOKENS:40", max_output_tokens=16)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


def test_compacted_conversation_goes_on(account: Account) -> None:
    client = account.client(_strict_response_validation=True)
    history: list[Any] = [{"role": "user", "content": "I like tea."}, {"role": "assistant", "content": "Noted."}]
    compacted = client.responses.compact(model=MODEL, input=history)
    assert compacted.output[-1].type == "compaction"
    goes_on = [item.to_dict() for item in compacted.output] + [{"role": "user", "content": "SAY: tea"}]
    assert client.responses.create(model=MODEL, input=goes_on).output_text == "tea"  # type: ignore[arg-type]
    assert len(account.records()) == 2
    account.assert_books_agree()

"""Responses over WebSocket: calls in turn, state of unstored responses as long as the connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.api.live.service import MODEL, PATIENCE_S, Account, Web, keep_responses


@pytest.fixture
def each_account(each_account: Account) -> Account:
    return keep_responses(each_account)


def open_socket(web: Web, secret: str) -> ClientConnection:
    url = web.url.replace("http", "ws", 1) + "/v1/responses"
    headers = {"Authorization": f"Bearer {secret}"}
    # Silence is nothing to give a connection up for: the machine may stand still.
    return connect(url, additional_headers=headers, open_timeout=PATIENCE_S, close_timeout=5, ping_interval=None)


@pytest.fixture
def socket(each_account: Account) -> Iterator[ClientConnection]:
    with open_socket(each_account.web, each_account.secret) as connection:
        yield connection


def send(socket: ClientConnection, **fields: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "model": MODEL, **fields}))


def turn(socket: ClientConnection) -> list[dict[str, Any]]:
    events = []
    while not events or events[-1]["type"] not in (
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ):
        events.append(json.loads(socket.recv(timeout=PATIENCE_S)))
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def test_calls_are_answered_in_turn(socket: ClientConnection) -> None:
    send(socket, input="SAY: first one", store=False)
    send(socket, input="SAY: second", store=False)
    first, second = turn(socket), turn(socket)
    assert (text_of(first), text_of(second)) == ("first one", "second")
    for events in (first, second):
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_unstored_response_goes_on_here_and_nowhere_else(each_account: Account, socket: ClientConnection) -> None:
    send(socket, input="SAY: ok", store=False)
    first = turn(socket)[-1]["response"]
    send(socket, input="SAY: on", store=False, previous_response_id=first["id"])
    assert turn(socket)[-1]["response"]["output"][0]["content"][0]["text"] == "on"
    with open_socket(each_account.web, each_account.secret) as another:
        send(another, input="x", store=False, previous_response_id=first["id"])
        (refusal,) = turn(another)
    assert (refusal["status"], refusal["error"]["code"]) == (404, "previous_response_not_found")


def test_stored_response_continues_an_unstored_one(each_account: Account, socket: ClientConnection) -> None:
    send(socket, input="SAY: ok", store=False)
    first = turn(socket)[-1]["response"]
    send(socket, input="SAY: kept", previous_response_id=first["id"])
    second = turn(socket)[-1]["response"]
    third = each_account.client().responses.create(model=MODEL, input="SAY: z", previous_response_id=second["id"])
    assert third.output_text == "z"


def test_failed_continuation_forgets_what_it_continued(socket: ClientConnection) -> None:
    send(socket, input="SAY: ok", store=False)
    first = turn(socket)[-1]["response"]
    output = {"type": "function_call_output", "call_id": "call_9", "output": "x"}
    send(socket, input=[output], store=False, previous_response_id=first["id"])
    assert turn(socket)[-1]["error"]["param"] == "input[0].call_id"
    send(socket, input="x", store=False, previous_response_id=first["id"])
    assert turn(socket)[-1]["error"]["code"] == "previous_response_not_found"


def test_odd_messages_are_answered_and_the_socket_stays_usable(socket: ClientConnection) -> None:
    for odd, code in (("{", "invalid_json"), ("[]", "invalid_value"), ('{"type":"other"}', "invalid_value")):
        socket.send(odd)
        assert turn(socket)[-1]["error"]["code"] == code
    send(socket, input="SAY: still here")
    assert text_of(turn(socket)) == "still here"


def test_bad_key_is_told_and_the_socket_closed(account: Account) -> None:
    with open_socket(account.web, "sk-tf-nothing") as socket:
        refusal = json.loads(socket.recv(timeout=PATIENCE_S))
        assert (refusal["status"], refusal["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=PATIENCE_S)


def test_client_that_leaves_is_billed_for_what_was_made(each_account: Account) -> None:
    with open_socket(each_account.web, each_account.secret) as socket:
        send(socket, input="PACE:5 TOKENS:2000")
        while "output_text.delta" not in str(socket.recv(timeout=PATIENCE_S)):
            pass
    record = each_account.record()
    assert record.status == "cancelled"
    assert 0 < record.completion_tokens < 2000
    each_account.assert_books_agree()

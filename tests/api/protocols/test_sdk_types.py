"""Every frame and every plain answer parses strictly with the official clients' own types."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.api.protocols.scenarios import MODEL, SCENARIOS, result_of, stream_of
from tests.api.protocols.sdk import anthropic_reading, anthropic_stream, openai_reading, openai_stream

every_scenario = pytest.mark.parametrize("name", SCENARIOS)


@every_scenario
def test_anthropic_client_reads_every_event(name: str) -> None:
    events = anthropic_stream(stream_of("messages", SCENARIOS[name]), MODEL)
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"


@every_scenario
def test_anthropic_client_assembles_the_plain_answer_from_the_stream(name: str) -> None:
    scenario = SCENARIOS[name]
    client = anthropic_reading(stream_of("messages", scenario))
    with client.messages.stream(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream:
        streamed = stream.get_final_message().to_dict(mode="json")
    plain = anthropic_reading(orjson.dumps(result_of("messages", scenario))).messages.create(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}]
    )
    expected = plain.to_dict(mode="json")
    for answer in (streamed, expected):
        answer["usage"].pop("cache_creation")  # the client's accumulator keeps the one of message_start
        for block in answer["content"]:
            block.pop("parsed_output", None)
    assert streamed == expected


@every_scenario
def test_openai_client_reads_every_response_event(name: str) -> None:
    events = openai_stream("responses", stream_of("responses", SCENARIOS[name]), MODEL)
    assert [event.sequence_number for event in events] == list(range(len(events)))


@every_scenario
def test_openai_client_reads_the_plain_response_as_the_last_event_said(name: str) -> None:
    scenario = SCENARIOS[name]
    last = openai_stream("responses", stream_of("responses", scenario), MODEL)[-1]
    plain = openai_reading(orjson.dumps(result_of("responses", scenario))).responses.create(model=MODEL, input="x")
    assert _without_seals(last.response.to_dict(mode="json")) == _without_seals(plain.to_dict(mode="json"))


@pytest.mark.parametrize("name", [name for name, it in SCENARIOS.items() if it.reason in ("eos", "tool_calls")])
def test_openai_client_assembles_the_response_from_its_deltas(name: str) -> None:
    scenario = SCENARIOS[name]
    with openai_reading(stream_of("responses", scenario)).responses.stream(model=MODEL, input="x") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text == "".join(delta.text for delta in scenario.deltas if type(delta).__name__ == "TextDelta")


def _without_seals(response: Any) -> Any:
    """Sealing draws a fresh nonce each time."""
    for item in response["output"] if response else ():
        item.pop("encrypted_content", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return response


@every_scenario
def test_openai_client_reads_every_completion_chunk(name: str) -> None:
    # OpenAI itself sends `finish_reason: null` until the last chunk, which its client's type does not allow.
    stream = stream_of("completions", SCENARIOS[name]).replace(b'"finish_reason":null', b'"finish_reason":"stop"')
    chunks = openai_stream("completions", stream, MODEL)
    assert chunks[-1].usage.total_tokens == 21


@every_scenario
def test_openai_client_reads_the_plain_completion(name: str) -> None:
    body = orjson.dumps(result_of("completions", SCENARIOS[name]))
    answer = openai_reading(body).completions.create(model=MODEL, prompt="x")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 12

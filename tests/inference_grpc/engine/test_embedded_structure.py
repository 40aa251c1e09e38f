"""The embedded model, weak as it is, keeps to schemas and calls tools, greedily and at random."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from inference_grpc.core.request import ChatPrompt, Constraint, Message, Request, SamplingParams, Tool, ToolChoice
from inference_grpc.events import Event, ToolCallArguments, ToolCallStart
from tests.inference_grpc.running import Client, reasons_of, text_of, usage_of
from tests.inference_grpc.text_output.parsing import PING, TOOLS, WEATHER
from tests.inference_grpc.text_output.schemas import SCHEMAS, an_object

TEMPERATURES = [0.0, 1.0]
PERSON = an_object(
    {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": ["string", "null"], "maxLength": 30},
        "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "address": an_object({"city": {"enum": ["Oslo", "Rome"]}, "zip": {"type": "string", "pattern": "^\\d{5}$"}}),
    }
)


def ask(text: str, temperature: float, *, tools: Any = (), seed: int = 7, **fields: Any) -> Request:
    return Request(
        request_id="r",
        prompt=ChatPrompt([Message("user", text)], tools=list(tools)),
        sampling=SamplingParams(temperature=temperature, seed=seed),
        **fields,
    )


def calls_of(events: list[Event]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            assert event.id
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallArguments):
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + event.text)
    return calls


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_answers_keep_to_their_schema_even_if_they_run_out_of_tokens(embedded: Client, temperature: float) -> None:
    schemas = {"person": PERSON} | {
        name: SCHEMAS[name]
        for name in ("free object", "recursive", "as pydantic writes it", "one of with a tag", "any")
    }
    requests = [
        ask(
            f"Give me an example of a {name} as JSON.",
            temperature,
            constraint=Constraint("json_schema", json.dumps(schema)),
            max_tokens=72,
        )
        for name, schema in schemas.items()
    ]
    for request, (name, schema), events in zip(requests, schemas.items(), embedded.run(*requests), strict=True):
        jsonschema.validate(json.loads(text_of(events)), schema)
        assert reasons_of(events)[0] in ("eos", "length"), name
        assert usage_of(events).completion_tokens <= request.max_tokens


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_json_mode_regex_and_grammar(embedded: Client, temperature: float) -> None:
    constraints = [
        Constraint("json_object"),
        Constraint("regex", r"\d{4}-\d{2}-\d{2}"),
        Constraint("grammar", 'start: "yes" | "no"'),
    ]
    answers = embedded.run(*(ask("Is it 2024?", temperature, constraint=c, max_tokens=60) for c in constraints))
    json_text, date, word = map(text_of, answers)
    assert isinstance(json.loads(json_text), dict)
    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", date)
    assert word in ("yes", "no")
    assert reasons_of(answers[1]) == reasons_of(answers[2]) == {0: "eos"}


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_tools_are_called_where_they_must_be(embedded: Client, temperature: float) -> None:
    rating = {"stars": {"type": "integer", "minimum": 1, "maximum": 5}, "mood": {"enum": ["good", "bad"]}}
    rate = Tool("rate", "Rate a film", an_object(rating, additionalProperties=False), strict=True)
    short = Tool("get_weather", "Weather", an_object({"city": {"type": "string", "maxLength": 20}}))
    required, named, subset = embedded.run(
        ask("What is the weather in Oslo?", temperature, tools=[short, PING], tool_choice=ToolChoice("required"),
            max_tokens=90),
        ask("The film was great.", temperature, tools=[*TOOLS, rate], tool_choice=ToolChoice("named", ["rate"]),
            max_tokens=90),
        ask("What is the weather in Oslo?", temperature, tools=[short, PING, rate],
            tool_choice=ToolChoice("required", ["ping", "rate"]), max_tokens=90),
    )  # fmt: skip
    assert calls_of(subset)[0][0] in ("ping", "rate")
    for events in (required, named, subset):
        assert reasons_of(events) == {0: "tool_calls"}
        assert text_of(events) == ""
    ((name, arguments),) = calls_of(required)
    assert name in ("get_weather", "ping")
    jsonschema.validate(json.loads(arguments), {"get_weather": short, "ping": PING}[name].parameters)
    ((name, arguments),) = calls_of(named)
    assert name == "rate"
    jsonschema.validate(json.loads(arguments), rate.parameters)


def test_several_choices_are_held_to_the_schema_each(embedded: Client) -> None:
    request = ask(
        "Name a colour.",
        1.0,
        n=3,
        constraint=Constraint("json_schema", json.dumps({"enum": ["red", "green", "blue"]})),
        max_tokens=12,
    )
    (events,) = embedded.run(request)
    assert all(json.loads(text_of(events, choice)) in ("red", "green", "blue") for choice in range(3))


def test_no_tool_is_called_where_none_may_be(embedded: Client) -> None:
    request = ask("Say hi.", 0.0, tools=[WEATHER], tool_choice=ToolChoice("none"), max_tokens=12)
    (events,) = embedded.run(request)
    assert calls_of(events) == []
    assert text_of(events)

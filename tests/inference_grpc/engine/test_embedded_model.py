"""The embedded model makes sense, and says the same alone and in company."""

from __future__ import annotations

from inference_grpc.core.request import Constraint
from tests.inference_grpc.running import Client, chat, reasons_of, text_of, usage_of

QUESTIONS = [
    "What is the capital of France?",
    "What is 2 + 3?",
    "Name a colour.",
    "Write one sentence about the sea.",
    "Who wrote Hamlet?",
    "Say hello in Spanish. " + "Be brief. " * 40,
    "What do bees make?",
    "Count to five.",
]


def test_it_knows_the_capital_of_france(embedded: Client) -> None:
    (events,) = embedded.run(chat(QUESTIONS[0], max_tokens=20))
    assert "Paris" in text_of(events)
    assert reasons_of(events) == {0: "eos"}
    assert usage_of(events).prompt_tokens == 37


def test_eight_at_once_say_what_each_says_alone(embedded: Client) -> None:
    requests = [chat(question, max_tokens=24, tenant="together") for question in QUESTIONS]
    together = [text_of(events) for events in embedded.run(*requests)]
    alone = [text_of(embedded.run(chat(question, max_tokens=24, tenant="alone"))[0]) for question in QUESTIONS]
    assert together == alone
    assert all(together)


def test_json_that_was_asked_for_is_json(embedded: Client) -> None:
    schema = '{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}'
    request = chat("Which city is the capital of France?", max_tokens=40, constraint=Constraint("json_schema", schema))
    (events,) = embedded.run(request)
    assert '"Paris"' in text_of(events)

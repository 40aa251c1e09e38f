"""Schemathesis reads /v1/openapi.json and holds the running gateway to it, operation by operation.

First one call that must succeed, then made-up ones, right and wrong: no 5xx, statuses, content types, bodies and errors
as documented, wrong bodies refused, nothing without a key, `Allow` on wrong methods. Left out is one check, that every
body of the right shape is accepted: rules between fields ("'stream_options' needs 'stream'") are no matter of a schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from api.rest.openapi import OPERATIONS, Operation
from tests.api.live.service import (
    MODEL,
    Account,
    Engine,
    Web,
    await_embeddings,
    keep_responses,
    make_account,
    make_model,
)

EXAMPLES = 10
MESSAGES = [{"role": "user", "content": "SAY: one two"}]
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
# What must be answered with 200, by operation.
BODIES: dict[str, list[dict[str, Any]]] = {
    "create_chat_completion": [
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "n": 2},
        {"messages": [{"role": "user", "content": "THINK: so SAY: one"}], "stream": True},
        {
            "messages": [{"role": "user", "content": "use get_weather"}],
            "tools": [{"type": "function", "function": TOOL}],
        },
        {"messages": [{"role": "user", "content": "use get_weather"}], "functions": [TOOL]},
    ],
    "create_response": [
        {"input": "THINK: so SAY: one"},
        {"input": "use get_weather", "tools": [{"type": "function", **TOOL}], "stream": True},
        {"input": "SAY: one two three", "max_output_tokens": 1},
    ],
    "count_response_tokens": [{"input": "one two"}],
    "compact_response": [{"input": "one two"}],
    "create_message": [
        {"messages": MESSAGES, "max_tokens": 9},
        {"messages": MESSAGES, "max_tokens": 1},
        {
            "messages": [{"role": "user", "content": "use get_weather"}],
            "max_tokens": 99,
            "tools": [{"name": "get_weather", "input_schema": TOOL["parameters"]}],
        },
    ],
    "count_message_tokens": [{"messages": MESSAGES}],
    "create_completion": [{"prompt": ["SAY: one", "SAY: two"], "logprobs": 1}, {"prompt": "x", "stream": True}],
    "create_embeddings": [{"input": "x"}, {"input": [[1, 2], [3]], "encoding_format": "base64", "dimensions": 4}],
}
ALWAYS_REFUSED = {"cancel_response"}
EMBEDDER = "embedder"


@pytest.fixture(scope="module")
def embedder(folder: Path, live_database: None) -> Iterator[None]:
    engine = Engine(folder, "embedding_dimensions = 8")
    engine.start()
    make_model(EMBEDDER, engine.address)
    yield
    engine.stop()


@pytest.fixture
def account(web: Web) -> Account:
    return keep_responses(make_account(web))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_the_gateway_is_what_its_document_says(operation: Operation, account: Account, embedder: None) -> None:
    model = EMBEDDER if operation.name == "create_embeddings" else MODEL
    if model == EMBEDDER:
        await_embeddings(account.web, model)
    schema = schemathesis.openapi.from_dict(account.http.get("/v1/openapi.json").json())
    schema.config.update(base_url=account.web.url)
    call = schema[operation.path][operation.method]
    headers = {} if operation.is_open else {"Authorization": f"Bearer {account.secret}"}

    def send(case: Any, **more: Any) -> int:
        return case.call_and_validate(
            headers={**headers, **more}, excluded_checks=[positive_data_acceptance]
        ).status_code

    kept = account.client().responses.create(model=MODEL, input="SAY: kept").id
    place = {
        name: value for name, value in (("model", MODEL), ("response_id", kept)) if f"{{{name}}}" in operation.path
    }
    if operation.name in ALWAYS_REFUSED:
        assert send(call.Case(path_parameters=place)) == 400
    elif operation.body is None:
        if len(operation.answers) == 2:
            # Before the other, for a deletion can be done once.
            assert send(call.Case(path_parameters=place), **{"anthropic-version": "2023-06-01"}) == 200
        assert send(call.Case(path_parameters=place)) == 200
    for body in BODIES.get(operation.name, []):
        assert send(call.Case(body={"model": model, **body}, media_type="application/json")) == 200, body

    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        call.as_strategy(generation_mode=GenerationMode.POSITIVE)
        | call.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    )
    def run(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = model
        send(case)

    run()


def test_every_operation_that_must_succeed_is_called() -> None:
    with_body = {operation.name for operation in OPERATIONS if operation.body is not None}
    assert with_body == set(BODIES)

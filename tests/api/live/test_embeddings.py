"""Embeddings through a server or an engine that has them: charged for their input, refused where nobody embeds."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.live.service import Account, Engine, await_embeddings, eventually, make_model

VECTORS = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]}


class Upstream(ThreadingHTTPServer):
    """Answers POST /v1/embeddings, or refuses it with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.bodies: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        body = json.dumps({**VECTORS, "usage": {"prompt_tokens": 5, "total_tokens": 5}}).encode()
        self.send_response(server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def model(account: Account, upstream: Upstream) -> str:
    name = f"embedder-{uuid.uuid4().hex[:8]}"
    make_model(name, f"http://127.0.0.1:{upstream.server_port}/v1", kind="openai_compatible", upstream="inner")
    eventually(lambda: account.http.get(f"/v1/models/{name}").status_code == 200)
    return name


def test_vectors_come_back_and_their_input_is_charged(account: Account, upstream: Upstream, model: str) -> None:
    answer = account.client(_strict_response_validation=True).embeddings.create(
        model=model, input=["hello", "you"], encoding_format="float", dimensions=2
    )
    assert answer.data[0].embedding == [0.25, -0.5]
    assert (answer.model, answer.usage.prompt_tokens) == (model, 5)
    assert upstream.bodies == [
        {"model": "inner", "input": ["hello", "you"], "encoding_format": "float", "dimensions": 2}
    ]
    record = account.record()
    assert (record.protocol, record.prompt_tokens, record.completion_tokens) == ("embeddings", 5, 0)
    assert record.cost_nano > 0
    account.assert_books_agree()


def test_upstream_without_embeddings_is_a_clear_refusal(account: Account, upstream: Upstream, model: str) -> None:
    upstream.status = 404
    for _ in range(4):
        with pytest.raises(openai.BadRequestError, match="embeddings"):
            account.client().embeddings.create(model=model, input="x")
    assert len(upstream.bodies) == 4
    account.assert_books_agree()


@pytest.fixture
def embedding_engine(folder: Path) -> Iterator[Engine]:
    engine = Engine(folder, "embedding_dimensions = 8")
    engine.start()
    yield engine
    engine.stop()


def test_an_engine_that_embeds_serves_them_itself(account: Account, embedding_engine: Engine) -> None:
    name = f"embedder-{uuid.uuid4().hex[:8]}"
    make_model(name, embedding_engine.address)
    await_embeddings(account.web, name)
    client = account.client()
    answer = client.embeddings.create(model=name, input=["one two", "three", "one two"])
    first, second, third = (each.embedding for each in answer.data)
    assert first == third != second
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-5)
    assert answer.usage.prompt_tokens == 5
    record = account.record()
    assert (record.protocol, record.prompt_tokens, record.completion_tokens) == ("embeddings", 5, 0)
    plain = client.embeddings.create(model=name, input="one two", encoding_format="float", dimensions=4)
    assert len(plain.data[0].embedding) == 4
    # As numbers and as base64 it is one vector; cut, it is stretched to length 1 again.
    longer = client.embeddings.create(model=name, input="one two", encoding_format="float")
    assert longer.data[0].embedding == pytest.approx(first, abs=1e-6)
    assert client.embeddings.create(model=name, input=[[5, 6], [7]]).usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError, match="the model has 8"):
        client.embeddings.create(model=name, input="x", dimensions=9)
    assert account.post("SAY: hi", model=name).status_code == 200
    account.assert_books_agree()


def test_an_engine_that_is_away_is_not_taken_for_one_that_cannot(account: Account, embedding_engine: Engine) -> None:
    name = f"embedder-{uuid.uuid4().hex[:8]}"
    embedding_engine.stop()
    make_model(name, embedding_engine.address)
    eventually(lambda: account.http.get(f"/v1/models/{name}").status_code == 200)
    assert account.http.post("/v1/embeddings", json={"model": name, "input": "x"}).status_code == 503
    embedding_engine.start()
    answer = eventually(
        lambda: account.http.post("/v1/embeddings", json={"model": name, "input": "x"}).json().get("data")
    )
    assert len(answer[0]["embedding"]) == 8

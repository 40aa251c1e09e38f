"""Embeddings through a server that has them: charged for their input, refused where nobody embeds."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from tests.api.live.service import Account, eventually, make_model

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

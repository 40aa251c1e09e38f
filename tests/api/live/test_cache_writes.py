"""Tokens that a server behind a model wrote to its cache: recorded, billed at their own price, and told the caller."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from billing.pricing.services import set_price
from tests.api.live.service import Account, eventually, make_model

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 1,
    "total_tokens": 1001,
    "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 500},
}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        frames: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": USAGE},
        ]
        lines = [*map(json.dumps, frames), "[DONE]"]
        body = "".join(f"data: {line}\n\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def model(account: Account) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"writer-{uuid.uuid4().hex[:8]}"
    # At once: the gateway must not see the model with another price.
    with transaction.atomic():
        make_model(name, f"http://127.0.0.1:{server.server_port}/v1", kind="openai_compatible", upstream="inner")
        set_price(
            model=name,
            input_nano=400_000_000,
            cached_input_nano=100_000_000,
            cache_write_nano=500_000_000,
            output_nano=2_000_000_000,
            effective_from=timezone.now(),
            actor_id=None,
        )
    eventually(lambda: account.http.get(f"/v1/models/{name}").status_code == 200)
    yield name
    server.shutdown()
    server.server_close()


def test_what_was_written_to_the_cache_is_recorded_billed_and_told(account: Account, model: str) -> None:
    call = {"model": model, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
    usage = account.http.post("/v1/messages", json=call).json()["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [usage[part] for part in parts] == [200, 300, 500]
    record = account.record()
    assert (record.prompt_tokens, record.cached_tokens, record.cache_write_tokens) == (1000, 300, 500)
    # 200 at $0.40, 300 at $0.10, 500 at $0.50 and 1 at $2 per million.
    assert (record.input_cost_nano, record.cached_cost_nano, record.cache_write_cost_nano) == (80_000, 30_000, 250_000)
    assert record.cost_nano == 362_000
    account.assert_books_agree()

"""The fake as a server on a free port, in a thread of its own, and the delivery of its events."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any

import uvicorn

from tests.fakes.stripe.app import Api, Fault, LostAnswer
from tests.fakes.stripe.store import Object

__all__ = ["FakeStripe", "Fault"]


class FakeStripe:
    """A context manager; `url` is what to give the official client as its API base."""

    def __init__(self, *, secret_key: str = "sk_test_fake", webhook_secret: str = "whsec_fake") -> None:
        self.secret_key = secret_key
        self.webhook_secret = webhook_secret
        self.api = Api(secret_key)
        config = uvicorn.Config(
            self._app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", interface="asgi3"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = ""

    def reset(self) -> None:
        """As if just started."""
        self.api = Api(self.secret_key)

    @property
    def store(self) -> Any:
        return self.api.store

    def __enter__(self) -> FakeStripe:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("The fake Stripe did not start.")
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)

    def fail(self, **fault: Any) -> Fault:
        """Order a fault; see Fault."""
        ordered = Fault(**fault)
        self.api.faults.append(ordered)
        return ordered

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        try:
            status, answer = self.api.handle(scope["method"], scope["path"], headers, query, body.decode())
        except LostAnswer:
            # A body shorter than announced: the server closes the connection and the client sees it break.
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99999")]})
            await send({"type": "http.response.body", "body": b"{", "more_body": False})
            return
        payload = json.dumps(answer, default=str).encode()
        start_headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": start_headers})
        await send({"type": "http.response.body", "body": payload})

    # Webhooks -------------------------------------------------------------------------------------------------------
    def events(self, kind: str) -> list[Object]:
        return [event for event in self.store.events if event["type"] == kind]

    def sign(self, body: bytes, *, secret: str | None = None, at: int | None = None) -> str:
        """The `Stripe-Signature` header of a body."""
        moment = int(time.time()) if at is None else at
        key = (self.webhook_secret if secret is None else secret).encode()
        digest = hmac.new(key, f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
        return f"t={moment},v1={digest}"

    def deliver(self, event: Object, url: str) -> int:
        """POST the signed event to an endpoint; returns its status."""
        body = json.dumps(event, default=str).encode()
        request = urllib.request.Request(
            url, data=body, headers={"Content-Type": "application/json", "Stripe-Signature": self.sign(body)}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

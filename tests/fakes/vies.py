"""A register of VAT numbers that answers as the Commission's does: known numbers, unknown ones, and its bad days."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class FakeVies(ThreadingHTTPServer):
    """`known` maps a number to its holder's name; `fault` is what it answers instead: a status, or an error's name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.known: dict[str, str] = {}
        self.fault: int | str | None = None
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rest-api"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeVies

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        fault = self.server.fault
        if self.path != "/rest-api/check-vat-number":
            self._answer(404, {})
        elif isinstance(fault, int):
            self._answer(fault, {"actionSucceed": False})
        elif fault is not None:
            # So it says that a member's own register is away: with status 200.
            self._answer(200, {"actionSucceed": False, "errorWrappers": [{"error": fault}]})
        else:
            number = body["countryCode"] + body["vatNumber"]
            asker = body.get("requesterNumber")
            self._answer(
                200,
                {
                    **{name: body[name] for name in ("countryCode", "vatNumber")},
                    "requestDate": "2026-05-15T12:00:00.000Z",
                    "valid": number in self.server.known,
                    "requestIdentifier": f"WAPIAAAA{len(self.server.asked):08d}" if asker else "",
                    "name": self.server.known.get(number, "---"),
                    "address": "---",
                },
            )

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        return

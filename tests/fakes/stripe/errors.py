"""Answers that are no success, in Stripe's shape."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"type": kind, "message": message}}
        if code:
            self.body["error"]["code"] = code
        if param:
            self.body["error"]["param"] = param


def missing(kind: str, identifier: str, param: str = "id") -> Refusal:
    return Refusal(f"No such {kind}: '{identifier}'", status=404, code="resource_missing", param=param)

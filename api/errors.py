"""One table: an error code of the gateway, portal, billing or engine to each dialect's status, type and retry headers.

Pure, so that dialects may use it for their mid-stream error events too.
"""

from __future__ import annotations

from dataclasses import dataclass

from portal.api_keys.redaction import redact


@dataclass(frozen=True, slots=True)
class Row:
    openai_status: int
    openai_type: str
    openai_code: str | None
    anthropic_status: int
    anthropic_type: str
    # None leaves the decision to the client's own rule (it retries 408, 409, 429 and 5xx).
    should_retry: bool | None = None
    retry_after_s: int | None = None


_INVALID = "invalid_request_error"


def _bad(code: str | None) -> Row:
    return Row(400, _INVALID, code, 400, _INVALID)


def _unauthorized(code: str | None) -> Row:
    return Row(401, _INVALID, code, 401, "authentication_error")


def _down(code: str, retry_after_s: int) -> Row:
    return Row(503, "server_error", code, 529, "overloaded_error", True, retry_after_s)


TABLE: dict[str, Row] = {
    # The caller
    "missing_api_key": _unauthorized(None),
    "invalid_api_key": _unauthorized("invalid_api_key"),
    "expired_api_key": _unauthorized("expired_api_key"),
    "organization_suspended": Row(403, _INVALID, "organization_suspended", 403, "permission_error"),
    "project_archived": Row(403, _INVALID, "project_archived", 403, "permission_error"),
    "permission_denied": Row(403, _INVALID, "permission_denied", 403, "permission_error"),
    # The request
    "invalid_request": _bad(None),
    "invalid_json": _bad("invalid_json"),
    "context_length_exceeded": _bad("context_length_exceeded"),
    "unsupported_schema": _bad("unsupported_value"),
    "unsupported_encoding": _bad("request_body_encoding_unsupported"),
    "not_found": Row(404, _INVALID, "not_found", 404, "not_found_error"),
    "model_not_found": Row(404, _INVALID, "model_not_found", 404, "not_found_error"),
    "method_not_supported": Row(405, _INVALID, "method_not_supported", 405, _INVALID),
    "conflict": Row(409, _INVALID, "conflict", 409, _INVALID, False),
    "request_timeout": Row(408, _INVALID, "request_timeout", 408, _INVALID),
    "request_too_large": Row(413, _INVALID, "request_too_large", 413, "request_too_large"),
    # Limits and credit
    "rate_limit_requests": Row(429, "requests", "rate_limit_exceeded", 429, "rate_limit_error"),
    "rate_limit_tokens": Row(429, "tokens", "rate_limit_exceeded", 429, "rate_limit_error"),
    "rate_limit_concurrency": Row(429, "requests", "rate_limit_exceeded", 429, "rate_limit_error", None, 1),
    "insufficient_quota": Row(429, "insufficient_quota", "insufficient_quota", 402, "billing_error", False),
    # The service
    "engine_overloaded": _down("engine_overloaded", 2),
    "engine_unavailable": _down("engine_unavailable", 5),
    "engine_shutdown": _down("engine_unavailable", 5),
    "model_not_served": _down("engine_unavailable", 5),
    "store_unavailable": Row(503, "server_error", "service_unavailable", 503, "api_error", True, 2),
    "shutting_down": _down("service_unavailable", 2),
    "deadline_exceeded": Row(504, "server_error", "timeout", 504, "timeout_error"),
    "device_fault": Row(500, "server_error", "engine_error", 500, "api_error"),
    "engine_error": Row(500, "server_error", "engine_error", 500, "api_error"),
    "upstream_error": Row(502, "server_error", "upstream_error", 502, "api_error"),
    "slow_reader": Row(500, "server_error", "slow_reader", 500, "api_error", False),
    "server_error": Row(500, "server_error", "server_error", 500, "api_error"),
}


# Why an organization that is suspended or that its owner deletes is refused.
TAKES_NO_CALLS = (
    "This organization takes no calls: the operator has suspended it, or its owner is deleting it. "
    "Its page in the portal says which."
)


class ApiError(Exception):
    """A refusal known before the first byte.

    `code` is a key of TABLE; `wire_code`, if any, is shown to the caller in place of the table's. `anthropic_message`
    says the same to callers of Anthropic's API, where its clients wait for other words.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        anthropic_message: str | None = None,
        param: str | None = None,
        wire_code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        retry_after_s: int | None = None,
    ) -> None:
        # It may quote what was sent, and keys are sent in the oddest places.
        message = redact(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.anthropic_message = message if anthropic_message is None else redact(anthropic_message)
        self.param = param
        self.wire_code = wire_code
        self.headers = headers
        self.retry_after_s = retry_after_s

    @property
    def row(self) -> Row:
        return row_of(self.code)


def row_of(code: str) -> Row:
    """The table's row; a code that an upstream made up is a server error."""
    return TABLE.get(code) or TABLE["server_error"]

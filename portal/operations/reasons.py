"""In words for operators: why calls were refused or failed, whose affair it is, and what an operator does about it."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.operations.titles import title_of

_CALLER = _("The caller's affair: the answer said what to correct.")
_KEY = _("The caller needs a key that works; its own pages make one.")
_LIMIT = _("Raise the limit, if this organization is to be served more.")
_CREDIT = _("Nothing is left to spend: grant credit, or wait for a top-up.")
_CAPACITY = _("Queues are full: add a deployment, or lower the limits of those who send most.")
_AWAY = _("A deployment does not answer: look at the engines.")
_STORE = _("PostgreSQL or Valkey cannot be used; calls resume by themselves once they are back.")
_FAULT = _("A fault of the service: the log of the web server has it under the call's id.")

# By code of api/errors.py: what to do.
REMEDIES: dict[str, str | Promise] = {
    "missing_api_key": _KEY,
    "invalid_api_key": _KEY,
    "expired_api_key": _KEY,
    "organization_suspended": _("Suspended by an operator: its page ends it."),
    "project_archived": _CALLER,
    "permission_denied": _CALLER,
    "invalid_request": _CALLER,
    "invalid_json": _CALLER,
    "context_length_exceeded": _CALLER,
    "unsupported_schema": _CALLER,
    "unsupported_encoding": _CALLER,
    "not_found": _CALLER,
    "model_not_found": _("Publish it under models and prices, if it is to be served."),
    "method_not_supported": _CALLER,
    "conflict": _CALLER,
    "request_timeout": _CALLER,
    "request_too_large": _CALLER,
    "rate_limit_requests": _LIMIT,
    "rate_limit_tokens": _LIMIT,
    "rate_limit_concurrency": _LIMIT,
    "insufficient_quota": _CREDIT,
    "engine_overloaded": _CAPACITY,
    "engine_unavailable": _AWAY,
    "engine_shutdown": _AWAY,
    "model_not_served": _AWAY,
    "store_unavailable": _STORE,
    "shutting_down": _("It drains and starts again; callers try another."),
    "deadline_exceeded": _CAPACITY,
    "device_fault": _AWAY,
    "engine_error": _AWAY,
    "upstream_error": _AWAY,
    "slow_reader": _CALLER,
    "server_error": _FAULT,
}
# The service's own affair: what the alert CallsRefusedByService pages for, and faults.
OURS = frozenset(
    {
        "engine_overloaded",
        "engine_unavailable",
        "engine_shutdown",
        "model_not_served",
        "store_unavailable",
        "shutting_down",
        "device_fault",
        "engine_error",
        "server_error",
    }
)
# By class of billing/rollups/failures.py, and what was cancelled.
FAILURES: dict[str, str | Promise] = {
    "request": _("The request's own"),
    "capacity": _("Queue full"),
    "unavailable": _("Deployment away"),
    "timeout": _("Took too long"),
    "engine": _("Fault of an engine"),
    "cancelled": _("Cancelled by the caller"),
}


def as_json() -> dict[str, dict[str, object]]:
    """For the page's script, in the reader's language."""
    return {
        "refusals": {
            code: {"label": str(title_of(code)), "remedy": str(remedy), "is_ours": code in OURS}
            for code, remedy in REMEDIES.items()
        },
        "failures": {name: str(label) for name, label in FAILURES.items()},
    }

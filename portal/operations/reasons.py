"""In words: why calls were refused or failed, whose affair it is, and what an operator does about it."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

_CALLER = _("The caller's affair: the answer said what to correct.")
_KEY = _("The caller needs a key that works; its own pages make one.")
_LIMIT = _("Raise the limit, if this organization is to be served more.")
_CREDIT = _("Nothing is left to spend: grant credit, or wait for a top-up.")
_CAPACITY = _("Queues are full: add a deployment, or lower the limits of those who send most.")
_AWAY = _("A deployment does not answer: look at the engines.")
_STORE = _("PostgreSQL or Valkey cannot be used; calls resume by themselves once they are back.")
_FAULT = _("A fault of the service: the log of the web server has it under the call's id.")

# By code of api/errors.py: what it is called, and what to do.
REFUSALS: dict[str, tuple[str | Promise, str | Promise]] = {
    "missing_api_key": (_("No API key"), _KEY),
    "invalid_api_key": (_("Unknown API key"), _KEY),
    "expired_api_key": (_("API key expired"), _KEY),
    "organization_suspended": (_("Organization suspended"), _("Suspended by an operator: its page ends it.")),
    "project_archived": (_("Project archived"), _CALLER),
    "permission_denied": (_("Not allowed with this key"), _CALLER),
    "invalid_request": (_("Request not valid"), _CALLER),
    "invalid_json": (_("Body is not JSON"), _CALLER),
    "context_length_exceeded": (_("Prompt too long"), _CALLER),
    "unsupported_schema": (_("Schema not supported"), _CALLER),
    "unsupported_encoding": (_("Encoding not supported"), _CALLER),
    "not_found": (_("No such address"), _CALLER),
    "model_not_found": (_("No such model"), _("Publish it under models and prices, if it is to be served.")),
    "method_not_supported": (_("Method not supported"), _CALLER),
    "conflict": (_("Conflict with another call"), _CALLER),
    "request_timeout": (_("Request sent too slowly"), _CALLER),
    "request_too_large": (_("Body too large"), _CALLER),
    "rate_limit_requests": (_("Limit of requests"), _LIMIT),
    "rate_limit_tokens": (_("Limit of tokens"), _LIMIT),
    "rate_limit_concurrency": (_("Limit of calls at once"), _LIMIT),
    "insufficient_quota": (_("Credit or budget used up"), _CREDIT),
    "engine_overloaded": (_("Queue full"), _CAPACITY),
    "engine_unavailable": (_("No deployment answers"), _AWAY),
    "engine_shutdown": (_("Engine stopping"), _AWAY),
    "model_not_served": (_("Engine serves another model"), _AWAY),
    "store_unavailable": (_("Store away"), _STORE),
    "shutting_down": (_("Web server stopping"), _("It drains and starts again; callers try another.")),
    "deadline_exceeded": (_("Took too long"), _CAPACITY),
    "device_fault": (_("Fault of a device"), _AWAY),
    "engine_error": (_("Fault of an engine"), _AWAY),
    "upstream_error": (_("Fault of an upstream"), _AWAY),
    "slow_reader": (_("Caller reads too slowly"), _CALLER),
    "server_error": (_("Fault of the service"), _FAULT),
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
            code: {"label": str(label), "remedy": str(remedy), "is_ours": code in OURS}
            for code, (label, remedy) in REFUSALS.items()
        },
        "failures": {name: str(label) for name, label in FAILURES.items()},
    }
